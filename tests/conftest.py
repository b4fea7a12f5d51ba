"""Order of the tests, and what none may leave to those that follow it in its process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


_MARKS = {"service": "mark.service", "e2e and not service": "mark.e2e"}  # by a stage's `-m`


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What has no tests of a late stage is not imported for it: all of it takes half a minute.

    Nor are the `conftest.py` of folders without any.
    """
    mark = _MARKS.get(config.option.markexpr)
    if mark is None:
        return None
    files = [collection_path] if collection_path.is_file() else collection_path.rglob("test_*.py")
    return None if any(mark in file.read_text() for file in files) else True


_LONGEST_FIRST = (  # of the files that start models: a long one at the end would run alone
    "target/test_sampling.py",
    "target/test_engine_drafter.py",
    "target/test_engine.py",
    "models/test_smollm2.py",
    "target/test_options.py",
    "target/test_architectures.py",
    "target/test_tensor_parallel.py",
    "target/test_products.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that start models come last, in files the longest of them first."""
    ranks = {Path(__file__).parent / name: i for i, name in enumerate(_LONGEST_FIRST)}

    def place(item: pytest.Item) -> int:
        starts_models = item.get_closest_marker("e2e") is not None
        return 1 + ranks.get(item.path, len(ranks)) if starts_models else 0

    items.sort(key=place)


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
