"""The engine's turns, in the test's own thread."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specray.control.batch_cost import BatchCost
from specray.draft.engine import DraftEngine
from specray.draft.inbox import Arrival, Inbox
from specray.errors import SessionRejectedError
from specray.observability.journal import Journal
from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
)
from tests.wire.fakes import RecordedTimeline

PROMPT = (1, 2, 3)
MODEST = 1000  # the router's id of the modest tenant's one session


class DivisibleBy4(BatchCost):
    @property
    def divisible_size(self) -> int:
        return 4


class Router:
    """Commits again as soon as it is answered, until there have been enough batches."""

    name = "router"

    def __init__(self, num_batches: int) -> None:
        self.inbox = Inbox(10_000)
        self.batches: list[tuple[int, ...]] = []
        self.lost: list[int] = []
        self._num_batches = num_batches

    def send(self, frame: ProposalFrame) -> None:
        self.lost += frame.lost
        if not frame.proposals:
            return
        self.batches.append(tuple(p.session_id for p in frame.proposals))
        if len(self.batches) == self._num_batches:
            self.inbox.close()
        for proposal in frame.proposals:
            self.put(Commit(proposal.session_id, proposal.position, (7,), 2, 0))

    def put(self, *items: OpenSession | Commit) -> None:
        opens = tuple(item for item in items if isinstance(item, OpenSession))
        commits = tuple(item for item in items if isinstance(item, Commit))
        self.inbox.put(Arrival(self, SessionFrame(opens, commits), 0))


class Proposer:
    """Proposes what is asked for; notes in which order sessions were opened."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.opened: list[int] = []  # lengths of their prompts

    def open(self, session: OpenSession) -> None:
        self.opened.append(len(session.token_ids))
        self.lengths[session.session_id] = len(session.token_ids)

    def commit(self, commit: Commit) -> None:
        self.lengths[commit.session_id] += len(commit.token_ids)

    def close(self, session_id: int) -> None:
        del self.lengths[session_id]

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return [Proposal(i, self.lengths[i], 7, (8, 9), "model") for i in session_ids]

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        return []


def opened(session_id: int, tenant: str, prompt: tuple[int, ...] = PROMPT) -> OpenSession:
    sampling = SamplingSettings()
    return OpenSession(session_id, prompt, len(prompt), sampling, depth=2, tenant=tenant)


def run(sessions: Sequence[OpenSession], num_batches: int, **weights: float) -> Router:
    """All sessions are open before the first commit comes."""
    router, proposer = Router(num_batches), Proposer()
    engine = DraftEngine(
        proposer, router.inbox, Journal("test"), weights=weights, cost=DivisibleBy4()
    )
    for session in sessions:  # each opening is a turn
        engine._turn([Arrival(router, SessionFrame((session,)), 0)])
    router.put(*(Commit(s.session_id, len(s.token_ids), (7,), 2, 0) for s in sessions))
    engine.run()
    return router


def test_a_greedy_tenant_does_not_starve_a_modest_one() -> None:
    greedy = [opened(i, "greedy") for i in range(60)]
    router = run([*greedy, opened(MODEST, "modest")], num_batches=100)

    assert all(len(batch) == 4 for batch in router.batches)
    assert all(MODEST in batch for batch in router.batches)
    assert {i for batch in router.batches for i in batch} == {*range(60), MODEST}


def test_tenants_with_many_sessions_are_served_by_weight() -> None:
    sessions = [opened(i, "ab"[i % 2]) for i in range(80)]
    router = run(sessions, num_batches=200, b=3.0)
    served = [i % 2 for batch in router.batches for i in batch]

    assert 0.72 < sum(served) / len(served) < 0.78


def test_one_tenants_batch_is_not_divided() -> None:
    router = run([opened(i, "only") for i in range(30)], num_batches=10)

    assert [len(batch) for batch in router.batches] == [30] * 10


def test_prefills_are_fair_too() -> None:
    router, proposer = Router(1), Proposer()
    engine = DraftEngine(proposer, router.inbox, Journal("test"))
    long = [opened(i, "greedy", (5,) * 50) for i in range(10)]
    router.put(*long, opened(MODEST, "modest"))
    router.put(Commit(9, 50, (7,), 2, 0))  # of the last one: once it is answered, all are open
    engine.run()

    assert len(proposer.opened) == 11
    assert len(PROMPT) in proposer.opened[:2]


class Crowded(Proposer):
    """Has no room for session 1 any more from a chosen moment on."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment
        self._evicted: list[int] = []

    def commit(self, commit: Commit) -> None:
        if commit.session_id not in self.lengths:
            raise SessionRejectedError("not open")
        super().commit(commit)
        if self.moment == "commit" and commit.session_id == 2:
            self._evict()

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        assert set(session_ids) <= set(self.lengths)
        if self.moment == "answer":  # the first half of them is answered first
            asked = [i for i in session_ids if i != 1]
            self._evict()
            return super().propose(asked)
        return super().propose(session_ids)

    def work(self) -> bool:
        if self.moment == "work":
            self._evict()
        return False

    def take_evicted(self) -> list[int]:
        evicted, self._evicted = self._evicted, []
        return evicted

    def _evict(self) -> None:
        if self.lengths.pop(1, None) is not None:
            self._evicted.append(1)


@pytest.mark.parametrize("moment", ["commit", "answer"])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_session_may_lose_its_room_at_any_moment(moment: str, order: tuple[int, int]) -> None:
    router, proposer = Router(num_batches=2), Crowded(moment)
    engine = DraftEngine(proposer, router.inbox, Journal("test"))
    for session_id in (1, 2):
        engine._turn([Arrival(router, SessionFrame((opened(session_id, "t"),)), 0)])
    router.put(*(Commit(i, len(PROMPT), (7,), 2, 0) for i in order))
    engine.run()

    assert router.lost == [1]
    assert router.batches[-1] == (2,)
    assert engine.stats.num_open_sessions <= 1


def test_room_that_is_lost_between_answers_is_told_at_once() -> None:
    router, proposer = Router(num_batches=1), Crowded("work")
    engine = DraftEngine(proposer, router.inbox, Journal("test"))
    engine._turn([Arrival(router, SessionFrame((opened(1, "t"),)), 0)])
    engine._turn([])

    assert router.lost == [1]
    assert engine.stats.num_open_sessions == 0


class NotedCost(BatchCost):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def observe(self, size: int, seconds: float) -> None:
        self.sizes.append(size)
        super().observe(size, seconds)


class AnsweredAhead(Proposer):
    """Has sent two of three answers ahead; behind one of these two it proposes for outcomes."""

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        answers = super().propose([i for i in session_ids if i % 3 == 0])
        outcomes = super().propose([i for i in session_ids if i % 3 == 1])
        return [*answers, *(replace(p, position=p.position + 2) for p in outcomes)]


def test_what_was_answered_ahead_is_no_answer_and_tells_nothing_of_what_one_costs() -> None:
    router, cost = Router(num_batches=1), NotedCost()
    engine = DraftEngine(AnsweredAhead(), router.inbox, Journal("test"), cost=cost)
    sessions = [opened(i, "only") for i in range(6)]
    for session in sessions:
        engine._turn([Arrival(router, SessionFrame((session,)), 0)])
    router.put(*(Commit(s.session_id, len(PROMPT), (7,), 2, 0) for s in sessions))
    engine.run()

    assert engine.stats.num_proposals == 2
    assert cost.sizes == [2]


class WithOutcomes(Proposer):
    """Behind each answer it proposes at once for two outcomes of verifying it."""

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        answers = super().propose(session_ids)
        return [replace(p, position=p.position + n) for p in answers for n in (0, 1, 3)]


class Recorded(Router):
    def __init__(self) -> None:
        super().__init__(num_batches=1)
        self.proposals: list[Proposal] = []

    def send(self, frame: ProposalFrame) -> None:
        self.proposals += frame.proposals


def test_outcomes_sent_with_an_answer_are_not_counted_or_timed_as_answers() -> None:
    """They would make answers seem longer than they are, and so each token cheaper."""
    router, timeline = Recorded(), RecordedTimeline()
    engine = DraftEngine(WithOutcomes(), router.inbox, Journal("test"), timeline)
    engine._turn([Arrival(router, SessionFrame((opened(1, "t"),)), 0)])
    engine._turn([Arrival(router, SessionFrame(commits=(Commit(1, 3, (7,), 2, 0),)), 0)])

    stats = engine.stats
    assert (stats.num_proposals, stats.num_proposed, stats.num_ahead) == (1, 2, 2)
    assert [(p.position, p.draft_time_us > 0) for p in router.proposals] == [
        (4, True),
        (5, False),
        (7, False),
    ]
    assert [event for event in timeline.events if event[0] == "outcome sent"] == [
        ("outcome sent", {"session": 1, "at": 5}),
        ("outcome sent", {"session": 1, "at": 7}),
    ]


class Ahead(Proposer):
    """Drafts ahead for its sessions, and says for which."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead: list[Proposal] = []

    def work(self) -> bool:
        self._ahead = [Proposal(i, n + 2, 7, (8,), "model") for i, n in self.lengths.items()]
        return False

    def worked_for(self) -> Collection[int]:
        return [*self.lengths, *self.lengths]

    def take_ahead(self) -> list[Proposal]:
        ahead, self._ahead = self._ahead, []
        return ahead

    def leave_out(self, session_id: int, outcomes: Collection[tuple[int, int]]) -> None:
        """It heeds nobody."""


class Reticent(Proposer):
    """Does not say for whom it works."""

    def work(self) -> bool:
        return True


def written(proposer: Proposer) -> list[tuple[str, dict[str, Any]]]:
    """What the timeline says of two sessions that are opened, then asked for in one frame."""
    router, timeline = Router(num_batches=9), RecordedTimeline()
    engine = DraftEngine(proposer, router.inbox, Journal("test"), timeline)
    for session_id in (30, 40):
        session = replace(opened(session_id, "t"), request_id=f"r{session_id}")
        engine._turn([Arrival(router, SessionFrame((session,)), 0)])
    commits = tuple(Commit(i, 3, (7,), 2, sent_at_ns=100 + i) for i in (40, 50, 30))
    engine._turn([Arrival(router, SessionFrame(commits=commits), 0)])
    return timeline.events


def test_the_timeline_names_the_sessions_of_each_turn_by_our_own_numbers() -> None:
    assert written(Ahead()) == [
        ("open", {"session": 1, "request": "r30"}),
        ("open", {"session": 2, "request": "r40"}),
        (
            "commit arrived",
            {
                "sessions": [2, None, 1],  # nobody has opened 50
                "at": [3, 3, 3],
                "added": [1, 1, 1],
                "sent_ns": [140, 150, 130],
            },
        ),
        ("answer", {"sessions": [1, 2]}),
        ("draft ahead", {"sessions": [1, 2]}),
        ("outcome sent", {"session": 1, "at": 6}),
        ("outcome sent", {"session": 2, "at": 6}),
    ]


def test_who_does_not_say_for_whom_it_works_is_seen_working_all_the_same() -> None:
    assert written(Reticent())[-1] == ("draft ahead", {"sessions": []})
    assert written(Proposer())[-1][0] == "answer"


class Settled(Proposer):
    """Has sent its answer ahead, and finds nothing more worth drafting."""

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return []

    def take_ahead(self) -> list[Proposal]:
        return [Proposal(i, length, 7, (), "model") for i, length in self.lengths.items()]

    def leave_out(self, session_id: int, outcomes: object) -> None:
        pass


def test_a_proposal_of_nothing_leaves_and_is_not_counted_as_drafted_ahead() -> None:
    router = Recorded()
    engine = DraftEngine(Settled(), router.inbox, Journal("test"))
    engine._turn([Arrival(router, SessionFrame((opened(1, "t"),)), 0)])
    engine._turn([Arrival(router, SessionFrame(commits=(Commit(1, 3, (7,), 2, 0),)), 0)])

    assert [proposal.token_ids for proposal in router.proposals] == [()]
    assert engine.stats.num_ahead == 0
