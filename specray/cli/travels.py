"""What travelled between targets and drafts, out of their timelines."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

Event = dict[str, Any]


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
    answered_us: float | None = None
    for event in events:
        name, facts = event["name"], event.get("args", {})
        if name in ("commit sent", "outcome sent"):
            under_way[name, facts["at"]].append(event["ts"])
        elif name == "answer":
            answered_us = event["ts"] + event["dur"]
        elif name == "commit arrived":
            for at in facts["at"]:
                if left := under_way["commit sent", at]:
                    yield Travel("commit", left.popleft(), event["ts"])
        elif name == "outcome buffered" and (left := under_way["outcome sent", facts["at"]]):
            yield Travel("proposal", left.popleft(), event["ts"])
        elif name == "answer buffered" and answered_us is not None:
            yield Travel("proposal", answered_us, event["ts"])
