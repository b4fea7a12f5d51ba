"""Out of timelines: what travelled between targets and drafts, and whose session is whose."""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import attrgetter
from typing import Any, Literal, NamedTuple

Event = dict[str, Any]
PROPOSALS = ("outcome buffered", "answer buffered")
_LOST_US = 1e6  # under way for longer: it never arrived, and what does is something else


class Session(NamedTuple):
    """A session as the process that writes of it numbers it."""

    pid: int
    number: int | None  # None: the process holds no such session, or did not say


class Travel(NamedTuple):
    """A commit, or a proposal, on its way; times in microseconds of the events' clock."""

    kind: Literal["commit", "proposal"]
    session: Session  # the target's
    at: int  # the length, in tokens, of the request that it extends
    left_us: float
    arrived_us: float


class _Commit(NamedTuple):
    """One that has arrived."""

    target: Session
    draft: Session
    travel: Travel


def followed(events: Sequence[Event]) -> dict[Session, Session]:
    """Of each session of a draft that of a target which it follows.

    Every process has numbers of its own, and routers have others, so that neither these nor
    requests' ids, which several sessions may share, tell. The commits do that both have written of.
    """
    commits = (commit for commit in _commits(events) if commit.draft.number is not None)
    return {commit.draft: commit.target for commit in commits}


def travels(events: Sequence[Event]) -> Iterator[Travel]:
    """Those that have arrived, in the order of that.

    Commits are known by the time at which they were sent, proposals by the session and the length
    that they extend. The outcomes of a length, which differ in its last token only, come in the
    order in which they left.

    Args:
        events: of targets and drafts, in the order of time.
    """
    commits = (commit.travel for commit in _commits(events))
    return merge(commits, _proposals(events), key=attrgetter("arrived_us"))


def session_of(event: Event) -> Session:
    """The one that an event concerns."""
    return Session(event["pid"], event["args"].get("session"))


def sessions_of(event: Event) -> list[Session]:
    """Those that an event of a batch concerns, in its order."""
    return [Session(event["pid"], number) for number in event["args"].get("sessions", ())]


def _commits(events: Sequence[Event]) -> Iterator[_Commit]:
    sent = {
        (event["args"]["at"], event["args"].get("sent_ns")): event
        for event in events
        if event["name"] == "commit sent"
    }
    for event in events:
        if event["name"] != "commit arrived":
            continue
        facts = event["args"]
        lists = facts["at"], facts.get("sent_ns", ()), sessions_of(event)
        for at, sent_ns, draft in zip(*lists, strict=False):  # of an older timeline: nothing
            if (left := sent.get((at, sent_ns))) is not None:
                target = session_of(left)
                travel = Travel("commit", target, at, left["ts"], event["ts"])
                yield _Commit(target, draft, travel)


def _proposals(events: Sequence[Event]) -> Iterator[Travel]:
    targets = followed(events)
    outcomes_us: dict[tuple[Session | None, int], deque[float]] = defaultdict(deque)
    answers_us: dict[Session | None, list[float]] = defaultdict(list)
    for event in events:
        name, now_us = event["name"], event.get("ts", 0.0)
        if name == "outcome sent":
            target = targets.get(session_of(event))
            outcomes_us[target, event["args"]["at"]].append(now_us)
        elif name == "answer":
            for draft in sessions_of(event):
                answers_us[targets.get(draft)].append(now_us + event["dur"])
        elif name in PROPOSALS:
            session, at = session_of(event), event["args"]["at"]
            is_ahead = name == "outcome buffered"
            left_us = (
                _take(outcomes_us[session, at], now_us)
                if is_ahead
                else _latest(answers_us[session], now_us)
            )
            if left_us is not None:
                yield Travel("proposal", session, at, left_us, now_us)


def _take(left_us: deque[float], now_us: float) -> float | None:
    """The departure of what arrives now, without those of what was lost on the way."""
    while left_us and now_us - left_us[0] > _LOST_US:
        left_us.popleft()
    return left_us.popleft() if left_us else None


def _latest(left_us: Sequence[float], now_us: float) -> float | None:
    """The latest departure before now; an answer may have several proposals."""
    num_before = bisect_right(left_us, now_us)
    return left_us[num_before - 1] if num_before else None
