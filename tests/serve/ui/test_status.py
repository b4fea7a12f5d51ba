import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from specray.errors import StreamClosedError
from specray.serve.membership import View
from specray.serve.ui.status import StatusBoard
from specray.types import SourceStats, SpeculationPolicy
from specray.wire.stats import RelayStats, TargetStats, Traffic

VIEW = View(("t:1", "t:2"), ("d:1",), SpeculationPolicy(), routers=("other",))
RELAY = RelayStats(("t:1",), ("d:1",), {"d:1": 3}, 1, {"draft_died": 2}, Traffic(), Traffic())


class Asked:
    """Targets of which the second never answers."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    async def __call__(self, address: str) -> TargetStats:
        self.addresses.append(address)
        if address == "t:2":
            raise StreamClosedError("gone")
        sources = {"prompt_lookup": SourceStats(num_proposed=10, num_accepted=4)}
        return TargetStats(num_steps=6, num_committed=9, sources=sources)  # type: ignore[arg-type]


def answered(stats: RelayStats) -> Callable[[], Awaitable[RelayStats]]:
    async def answer() -> RelayStats:
        return stats

    return answer


def read(board: StatusBoard, view: View | None = VIEW) -> dict[str, Any]:
    return asyncio.run(board.read(view, answered(RELAY)))


def test_it_tells_who_is_there_and_what_they_counted() -> None:
    status = read(StatusBoard("own", ["m"], Asked()))

    assert json.loads(json.dumps(status)) == status
    assert status["routers"] == ["other", "own"]
    first, second = status["targets"]
    assert first["is_connected"]
    assert first["counters"]["num_committed"] == 9
    assert first["counters"]["sources"] == {
        "prompt_lookup": {"num_proposed": 10, "num_accepted": 4}
    }
    assert second == {"address": "t:2", "is_connected": False, "counters": None}
    assert status["drafts"] == [{"address": "d:1", "is_connected": True, "num_sessions": 3}]
    assert status["fallbacks"] == {"draft_died": 2}


def test_many_who_look_ask_the_targets_once() -> None:
    now = [0.0]
    asked = Asked()
    board = StatusBoard("own", ["m"], asked, clock=lambda: now[0])
    for _ in range(5):
        read(board)
    assert asked.addresses == ["t:1", "t:2"]
    now[0] = 1.0
    read(board)
    assert len(asked.addresses) == 4


def test_before_the_controller_has_answered_nobody_is_known() -> None:
    status = read(StatusBoard("own", ["m"], Asked()), view=None)
    assert (status["targets"], status["drafts"], status["policy"]) == ([], [], None)


def test_drafts_of_targets_with_streams_of_their_own_are_counted_there() -> None:
    direct = RelayStats(None, ("d:1",), {"d:1": 2}, 1, {"draft_died": 1}, Traffic(), Traffic())
    router = RelayStats(("t:1", "t:2"), None, {}, 0, {"draft_died": 0}, Traffic(), Traffic())

    async def ask(_address: str) -> TargetStats:
        return TargetStats(direct=direct)

    status = asyncio.run(StatusBoard("own", ["m"], ask).read(VIEW, answered(router)))

    assert status["drafts"] == [{"address": "d:1", "is_connected": True, "num_sessions": 4}]
    assert status["num_sessions_without_draft"] == 2
    assert status["fallbacks"] == {"draft_died": 2}
