import asyncio
import json
import logging
import subprocess
import sys

import pytest

from specray.config import ObjectiveConfig, SpeculationConfig
from specray.errors import InvalidConfigError
from specray.serve.controller import Controller
from specray.serve.membership import EXPIRY_S, Member, View
from specray.serve.scaling import wish
from specray.types import SpeculationPolicy
from tests.control.reports_util import draft, idle, target
from tests.serve.replicas import replica_of

POOLS = ("target:m", "draft")
START = SpeculationPolicy(is_enabled=True, max_depth=5, max_wait_ms=15.0)


@pytest.fixture
def controller() -> Controller:
    speculation = SpeculationConfig(max_depth=5, max_wait_ms=15.0, stop_gap=False)
    return Controller(speculation, POOLS)


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


def test_routers_are_known_by_name_and_no_one_connects_to_them(controller: Controller) -> None:
    answer = asyncio.run(controller.heartbeat(Member("router", "r1")))

    assert answer == View((), (), START, is_complete=False, routers=("r1",))


def test_the_policy_changes_while_replicas_run(controller: Controller) -> None:
    controller.reconfigure({"is_enabled": False, "max_depth": 2, "max_wait_ms": 5})
    assert view(controller).policy == SpeculationPolicy(False, 2, 5.0)

    controller.reconfigure({})
    assert view(controller).policy == START


def test_serve_takes_an_empty_user_config_to_it_as_well() -> None:
    async def reconfigured() -> SpeculationPolicy:
        replica = await replica_of(Controller, SpeculationConfig(max_depth=5), POOLS)
        await replica.call_reconfigure({"is_enabled": False}, rank=None)
        await replica.call_reconfigure(None, rank=None)
        return (await replica._callable.view()).policy

    assert asyncio.run(reconfigured()).is_enabled


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
        ({"is_frozen": 7}, "is_frozen"),
        ({"num_replicas": {"draft": -1}}, "num_replicas"),
        ({"num_replicas": 3}, "num_replicas"),
    ],
)
def test_a_faulty_policy_is_named_and_the_last_one_stays(
    controller: Controller, user_config: dict[str, object], field: str
) -> None:
    controller.reconfigure({"max_depth": 3})

    with pytest.raises(InvalidConfigError, match=rf"user_config of the controller(.|\n)*{field}"):
        controller.reconfigure(user_config)
    asyncio.run(controller.heartbeat(Member("target", "t:1")))
    controller.reconfigure(user_config)  # Serve would stop a replica that raises now
    assert view(controller).policy.max_depth == 3


def test_replicas_of_a_pool_that_is_not_there_are_refused() -> None:
    controller = Controller(SpeculationConfig(), POOLS)
    controller.reconfigure({"num_replicas": {"draft": 2}})

    with pytest.raises(InvalidConfigError, match="num_replicas: 'drafts' is none of the pools"):
        controller.reconfigure({"num_replicas": {"drafts": 2}})


def test_it_is_replaced_fast_as_it_imports_no_engine() -> None:
    """vLLM alone takes 10 to 20 s, in which targets report nothing."""
    code = (
        "import sys, specray.serve.controller; "
        "sys.exit(bool({'vllm', 'numba'}.intersection(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Pools:
    """A controller, and members that report to it."""

    def __init__(self, **objective: object) -> None:
        self.clock = Clock()
        speculation = SpeculationConfig(
            max_depth=5, objective=ObjectiveConfig.model_validate(objective)
        )
        self.controller = Controller(speculation, POOLS, 8, "draft", clock=self.clock)

    def beat(self, seconds: float, *reports: object) -> View:
        """All members' heartbeats for some time, one a second."""
        end = self.clock.now + seconds
        self._beat(*reports)
        while self.clock.now + 1.0 < end:
            self.clock.now += 1.0
            self._beat(*reports)
        self.clock.now = end
        return self._beat(*reports)

    def _beat(self, *reports: object) -> View:
        answer = view(self.controller)
        for i, report in enumerate(reports):
            role = "draft" if report.deployment == "draft" else "target"  # type: ignore[attr-defined]
            member = Member(role, f"{role}:{i}")  # type: ignore[arg-type]
            answer = asyncio.run(self.controller.heartbeat(member, report))  # type: ignore[arg-type]
        return answer

    def wishes(self) -> dict[str, float]:
        return self.controller.record_autoscaling_stats()


FULL = target(num_running=8.0, num_waiting=8.0)


def test_nothing_is_wished_for_before_everyone_can_have_been_heard() -> None:
    pools = Pools()
    pools.beat(EXPIRY_S - 0.1, FULL)
    assert pools.wishes() == {}

    pools.beat(0.2, FULL)
    assert pools.wishes() == {wish("target:a"): 2.0, wish("draft"): 1.0}


def test_a_replica_that_falls_silent_counts_no_more() -> None:
    pools = Pools()
    pools.beat(EXPIRY_S, FULL, draft())
    pools.beat(EXPIRY_S + 1, idle(kv_usage=0.0))

    assert pools.wishes() == {wish("target:a"): 0.0, wish("draft"): 0.0}


def test_a_change_is_logged_once_with_its_inputs(caplog: pytest.LogCaptureFixture) -> None:
    pools = Pools()
    with caplog.at_level(logging.INFO, logger="specray.serve.controller"):
        pools.beat(EXPIRY_S, FULL)
        pools.beat(3.0, FULL)
        pools.beat(3.0, FULL)
    lines = [record.getMessage() for record in caplog.records]

    (line,) = (line for line in lines if "target:a" in line)
    assert "decided: target:a 2, was 1: places at 250% of the limit" in line
    assert "waiting 8" in line


def test_it_explains_itself_in_json() -> None:
    pools = Pools()
    pools.beat(EXPIRY_S, FULL, draft())
    known = json.loads(json.dumps(asyncio.run(pools.controller.explain())))

    assert known["is_complete"]
    assert [member["role"] for member in known["members"]] == ["draft", "target"]
    assert known["members"][1]["report"]["num_waiting"] == 8.0
    decisions = {decision["subject"]: decision for decision in known["decisions"]}
    assert decisions["target:a"]["value"] == 2
    assert {change["subject"] for change in known["changes"]} >= {"target:a"}


def test_frozen_by_hand_it_holds_and_chosen_numbers_are_followed() -> None:
    pools = Pools()
    pools.beat(EXPIRY_S, FULL)
    before = pools.wishes()
    pools.controller.reconfigure({"is_frozen": True, "num_replicas": {"draft": 2}})
    pools.beat(3.0, idle())

    assert pools.wishes() == before | {wish("draft"): 2.0}
    pools.controller.reconfigure({})
    pools.beat(3.0, idle(kv_usage=0.0))
    assert pools.wishes() == {wish("target:a"): 0.0, wish("draft"): 0.0}


BAD = target(survivals=(0.3, 0.05, 0.01))
BUSY = draft(needed=1.0, answer_each_s=0.02)


def test_a_freeze_outlives_the_controllers_replica() -> None:
    first, second = Pools(is_limiting=True), Pools(is_limiting=True)
    before = first.beat(EXPIRY_S, BAD, BUSY)
    wishes = first.wishes()
    second.controller.reconfigure({"is_frozen": True, "max_fan_out": None})

    asyncio.run(second.controller.heartbeat(Member("router", "r"), None, before.held))
    answers = [view(second.controller), second.beat(EXPIRY_S, idle()), second.beat(3.0, idle())]

    assert [(a.policy.max_depth, a.max_fan_out, a.held) for a in answers] == [
        (1, 0, before.held)
    ] * 3
    assert second.wishes() == wishes
    second.controller.reconfigure({})
    assert second.beat(3.0, idle()).policy.max_depth == 5


def test_what_is_chosen_by_hand_comes_before_what_another_held_from_the_first_moment() -> None:
    first, second = Pools(), Pools()
    held = first.beat(EXPIRY_S, BAD, BUSY).held
    second.controller.reconfigure({"is_frozen": True, "num_replicas": {"draft": 3}})
    asyncio.run(second.controller.heartbeat(Member("router", "r"), None, held))

    assert second.wishes()[wish("draft")] == 3


def test_what_another_held_is_bounded_by_the_files_limits() -> None:
    first = Pools()
    held = first.beat(EXPIRY_S, target(), draft()).held
    speculation = SpeculationConfig(max_depth=2, objective={"is_limiting": True})
    smaller = Controller(speculation, POOLS, 3)
    smaller.reconfigure({"is_frozen": True})

    asyncio.run(smaller.heartbeat(Member("router", "r"), None, held))

    assert (view(smaller).policy.max_depth, view(smaller).max_fan_out) == (2, 3)


def test_what_another_held_counts_for_nothing_unless_it_is_frozen_or_once_it_has_decided() -> None:
    first = Pools(is_limiting=True)
    held = first.beat(EXPIRY_S, BAD, BUSY).held
    free, late = Pools(is_limiting=True), Pools(is_limiting=True)

    asyncio.run(free.controller.heartbeat(Member("router", "r"), None, held))
    assert view(free.controller).policy.max_depth == 5

    late.beat(EXPIRY_S, target(), draft())
    late.controller.reconfigure({"is_frozen": True})
    asyncio.run(late.controller.heartbeat(Member("router", "r"), None, held))
    assert view(late.controller).held != held


def test_a_fan_out_chosen_by_hand_holds_from_the_first_moment() -> None:
    pools = Pools(is_limiting=True)
    pools.controller.reconfigure({"max_fan_out": 3})

    assert view(pools.controller).max_fan_out == 3


def test_ceilings_hold_only_where_they_are_asked_for() -> None:
    advice, limits = Pools(), Pools(is_limiting=True)

    free = advice.beat(EXPIRY_S, BAD, BUSY)
    assert (free.policy.max_depth, free.max_fan_out) == (5, None)
    bounded = limits.beat(EXPIRY_S, BAD, BUSY)
    assert bounded.policy.max_depth == 1
    assert bounded.max_fan_out == 0

    advice.controller.reconfigure({"max_fan_out": 3})
    assert view(advice.controller).max_fan_out == 3
