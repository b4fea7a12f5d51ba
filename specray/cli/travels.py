"""What travelled between targets and drafts, out of their timelines."""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

Event = dict[str, Any]
_LOST_US = 1e6  # under way for longer: it never arrived, and what does is something else


class Travel(NamedTuple):
    """A commit, or a proposal, on its way; times in microseconds of the events' clock."""

    kind: Literal["commit", "proposal"]
    left_us: float
    arrived_us: float


def travels(events: Sequence[Event]) -> Iterator[Travel]:
    """Those that have arrived, in the order of that.

    They are known by the length of the request that they extend: of several requests at a time some
    may be taken for each other.

    Args:
        events: of targets and drafts, in the order of time.
    """
    under_way: dict[tuple[str, int], deque[float]] = defaultdict(deque)
    answered_us: list[float] = []
    for event in events:
        name, facts, now_us = event["name"], event.get("args", {}), event.get("ts", 0.0)
        if name in ("commit sent", "outcome sent"):
            under_way[name, facts["at"]].append(now_us)
        elif name == "answer":
            answered_us.append(now_us + event["dur"])
        elif name == "commit arrived":
            for at in facts["at"]:
                if (left_us := _take(under_way["commit sent", at], now_us)) is not None:
                    yield Travel("commit", left_us, now_us)
        elif name == "outcome buffered":
            if (left_us := _take(under_way["outcome sent", facts["at"]], now_us)) is not None:
                yield Travel("proposal", left_us, now_us)
        elif name == "answer buffered" and (done := bisect_right(answered_us, now_us)):
            yield Travel("proposal", answered_us[done - 1], now_us)


def _take(left_us: deque[float], now_us: float) -> float | None:
    """The departure of what arrives now, without those of what was lost on the way."""
    while left_us and now_us - left_us[0] > _LOST_US:
        left_us.popleft()
    return left_us.popleft() if left_us else None
