import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError

from specray.control.pools import Decision
from specray.control.slow_loop import Decisions
from specray.errors import StreamClosedError
from specray.serve import membership
from specray.serve.membership import (
    EXPIRY_S,
    Member,
    Registry,
    View,
    beat,
    listen_address,
    say_goodbye,
)
from specray.types import SpeculationPolicy

VIEW = View(("t",), (), SpeculationPolicy())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(clock: Clock) -> Registry:
    return Registry(clock)


def test_members_are_known_by_role_in_a_fixed_order(registry: Registry) -> None:
    for address in ("b:1", "a:2", "a:1", "a:2"):
        registry.hear(Member("target", address))
    registry.hear(Member("draft", "c:1"))

    assert registry.addresses("target") == ("a:1", "a:2", "b:1")
    assert registry.addresses("draft") == ("c:1",)


def test_who_falls_silent_is_forgotten_and_may_come_back(registry: Registry, clock: Clock) -> None:
    registry.hear(Member("target", "old"))
    clock.now = EXPIRY_S / 2
    registry.hear(Member("target", "new"))
    clock.now = EXPIRY_S + 0.1

    assert registry.addresses("target") == ("new",)
    registry.hear(Member("target", "old"))
    assert registry.addresses("target") == ("new", "old")


def test_a_registry_is_complete_once_everyone_could_be_heard(
    registry: Registry, clock: Clock
) -> None:
    assert not registry.is_complete
    clock.now = EXPIRY_S
    assert registry.is_complete


def test_a_pause_of_the_registry_is_not_the_members(registry: Registry, clock: Clock) -> None:
    """After it heartbeats are handled one by one: the first must not look like the only one."""
    for _ in range(10):
        for address in ("a", "b"):
            registry.hear(Member("draft", address))
        clock.now += 1.0
    assert registry.is_complete

    clock.now += EXPIRY_S
    assert registry.reports() == {}  # who asks before they are heard finds nobody
    registry.hear(Member("draft", "a"))
    assert registry.addresses("draft") == ("a",)
    assert not registry.is_complete

    for _ in range(round(EXPIRY_S)):
        clock.now += 1.0
        registry.hear(Member("draft", "a"))
    assert registry.is_complete


def test_an_incomplete_view_takes_nobody_away() -> None:
    before = View(("a", "b"), ("d",), SpeculationPolicy())
    fresh = View(("b", "c"), (), SpeculationPolicy(max_depth=2), is_complete=False)
    joined = fresh.completed_by(before)
    assert (joined.targets, joined.drafts) == (("a", "b", "c"), ("d",))
    assert joined.policy.max_depth == 2
    assert fresh.completed_by(None) == fresh
    assert replace(fresh, is_complete=True).completed_by(before).targets == ("b", "c")


def test_a_heartbeat_keeps_a_member(registry: Registry, clock: Clock) -> None:
    for _ in range(20):
        registry.hear(Member("draft", "d"))
        clock.now += EXPIRY_S * 0.9
        assert registry.addresses("draft") == ("d",)


def test_who_says_goodbye_is_gone_at_once(registry: Registry) -> None:
    registry.hear(Member("draft", "d"))
    registry.forget(Member("draft", "d"))
    registry.forget(Member("draft", "never heard of"))

    assert registry.addresses("draft") == ()


def test_a_chosen_address_is_taken_as_it_is() -> None:
    assert listen_address("10.1.2.3") == "10.1.2.3"


@asynccontextmanager
async def beating(
    ask: Callable[[Decisions | None], Awaitable[View]],
    tell: Callable[[View], Awaitable[None] | None],
) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(beat(ask, tell))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "PERIOD_S", 0.0)


@pytest.mark.parametrize(
    "error",
    [RayActorError(), BackPressureError(1, 1), TimeoutError(), StreamClosedError("too busy")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("is_askers", [True, False])
def test_a_missed_heartbeat_is_not_the_last(error: Exception, is_askers: bool) -> None:
    asyncio.run(_miss_two_heartbeats(error, is_askers))


async def _miss_two_heartbeats(error: Exception, is_askers: bool) -> None:
    faults = [error, error]
    told = asyncio.Event()

    async def ask(_held: Decisions | None) -> View:
        if is_askers and faults:
            raise faults.pop()
        return VIEW

    async def tell(view: View) -> None:
        if faults:
            raise faults.pop()
        assert view == VIEW
        told.set()

    async with beating(ask, tell), asyncio.timeout(5):
        await told.wait()


def test_an_error_of_ours_is_logged_and_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(_miss_two_heartbeats(ZeroDivisionError("a fault of ours"), is_askers=False))

    (first, _second) = caplog.records
    assert first.levelname == "ERROR"
    assert "a fault of ours" in caplog.text


def test_the_controllers_view_is_passed_on_each_period() -> None:
    async def listen() -> list[View]:
        heard: list[View] = []
        full = asyncio.Event()

        async def ask(_held: Decisions | None) -> View:
            return VIEW

        def tell(view: View) -> None:
            heard.append(view)
            if len(heard) == 3:
                full.set()

        async with beating(ask, tell), asyncio.timeout(5):
            await full.wait()
        return heard

    assert asyncio.run(listen())[:3] == [VIEW] * 3


def test_the_controllers_last_decisions_are_told_to_who_replaces_it() -> None:
    ceiling = Decision("depth ceiling", 2, 5, "why")
    decisions = Decisions(ceiling, ceiling)

    async def listen() -> list[Decisions | None]:
        told: list[Decisions | None] = []
        answers = [VIEW, replace(VIEW, held=decisions), TimeoutError()]
        full = asyncio.Event()

        async def ask(held: Decisions | None) -> View:
            told.append(held)
            answer = answers.pop(0) if answers else VIEW
            if isinstance(answer, Exception):
                raise answer
            return answer

        def tell(_view: View) -> None:
            if len(told) >= 5:
                full.set()

        async with beating(ask, tell), asyncio.timeout(5):
            await full.wait()
        return told

    assert asyncio.run(listen())[:5] == [None, None, *[decisions] * 3]


def test_a_goodbye_is_heard() -> None:
    heard = []

    async def leave() -> None:
        heard.append(True)

    asyncio.run(say_goodbye(leave))

    assert heard == [True]


@pytest.mark.parametrize("error", [RayActorError(), TimeoutError()])
def test_who_goes_does_not_mind_that_nobody_hears_it(error: Exception) -> None:
    async def leave() -> None:
        raise error

    asyncio.run(say_goodbye(leave))


def test_nor_does_it_wait_for_a_controller_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_GOODBYE_S", 0.01)

    asyncio.run(asyncio.wait_for(say_goodbye(asyncio.Event().wait), 5.0))
