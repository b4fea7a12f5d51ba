"""Order of the tests, and what none may leave to those that follow it in its process."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that start models come last. A slow machine is no fault of theirs."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)


@pytest.fixture(autouse=True)
def _leaves_no_more_threads() -> Iterator[None]:
    """Two threads where others have the cores: what follows takes a hundred times as long."""
    before = _num_threads()
    yield
    if before:
        assert _num_threads() <= before, "more of PyTorch's threads than before this test"


def _num_threads() -> int:
    """Of PyTorch, here; 0 where it is not loaded."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else 0
