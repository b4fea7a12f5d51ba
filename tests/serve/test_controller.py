import asyncio

import pytest

from specray.config import SpeculationConfig
from specray.errors import InvalidConfigError
from specray.serve.controller import Controller
from specray.serve.membership import Member, View
from specray.types import SpeculationPolicy

START = SpeculationPolicy(is_enabled=True, max_depth=5, max_wait_ms=15.0)


@pytest.fixture
def controller() -> Controller:
    return Controller(SpeculationConfig(max_depth=5, max_wait_ms=15.0))


def view(controller: Controller) -> View:
    return asyncio.run(controller.view())


def test_it_starts_with_the_files_policy_and_nobody_there(controller: Controller) -> None:
    assert view(controller) == View((), (), START, is_complete=False)


def test_a_heartbeat_is_answered_with_all_that_is_known(controller: Controller) -> None:
    asyncio.run(controller.heartbeat(Member("draft", "d:1")))
    answer = asyncio.run(controller.heartbeat(Member("target", "t:1")))

    assert answer == View(("t:1",), ("d:1",), START, is_complete=False)
    asyncio.run(controller.leave(Member("draft", "d:1")))
    assert view(controller).drafts == ()


def test_the_policy_changes_while_replicas_run(controller: Controller) -> None:
    controller.reconfigure({"is_enabled": False, "max_depth": 2, "max_wait_ms": 5})
    assert view(controller).policy == SpeculationPolicy(False, 2, 5.0)

    controller.reconfigure({})
    assert view(controller).policy == START


def test_the_live_depth_does_not_exceed_that_of_the_engines_buffers(controller: Controller) -> None:
    controller.reconfigure({"max_depth": 60})

    assert view(controller).policy.max_depth == 5


@pytest.mark.parametrize(
    ("user_config", "field"),
    [
        ({"max_deph": 2}, "max_deph"),
        ({"max_depth": -1}, "max_depth"),
        ({"max_depth": 65}, "max_depth"),
        ({"max_wait_ms": 0}, "max_wait_ms"),
        ({"max_wait_ms": float("inf")}, "max_wait_ms"),
        ({"is_enabled": "perhaps"}, "is_enabled"),
    ],
)
def test_a_faulty_policy_is_named_and_the_last_one_stays(
    controller: Controller, user_config: dict[str, object], field: str
) -> None:
    controller.reconfigure({"max_depth": 3})

    with pytest.raises(InvalidConfigError, match=rf"user_config of the controller(.|\n)*{field}"):
        controller.reconfigure(user_config)
    assert view(controller).policy.max_depth == 3
