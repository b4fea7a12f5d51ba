"""The service around a scripted proposer; the fakes block until the test lets them go."""

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from queue import Queue

import pytest

from specray.config import PromptLookupConfig
from specray.draft import service as service_module
from specray.draft.directory import Address
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.replies import Replies
from specray.draft.service import DraftService
from specray.errors import SessionRejectedError, StartupError
from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
)
from tests.saboteur import Saboteur

TIMEOUT_S = 5.0


class Router:
    name = "router"

    def __init__(self) -> None:
        self.frames: Queue[ProposalFrame] = Queue()

    def send(self, frame: ProposalFrame) -> None:
        self.frames.put(frame)

    def next_frame(self) -> ProposalFrame:
        return self.frames.get(timeout=TIMEOUT_S)


class ScriptedProposer:
    """Proposes the session's length; `gate` holds `propose` and `open` back."""

    def __init__(self) -> None:
        self.sessions: dict[int, list[int]] = {}
        self.depths: dict[int, Commit] = {}
        self.calls: Queue[tuple[str, tuple[int, ...]]] = Queue()
        self.gate = threading.Event()
        self.gate.set()
        self.evicted: list[int] = []
        self.num_works = 0  # calls of `work` that find something to do
        self.rejected_tokens: set[int] = set()
        self.error: Exception | None = None
        self.at_once: set[int] = set()  # sessions that are answered before all others
        self.at_least = 1

    def open(self, session: OpenSession) -> None:
        self._called("open", session.session_id)
        if session.token_ids[0] in self.rejected_tokens:
            raise SessionRejectedError("too long")
        self.sessions[session.session_id] = list(session.token_ids)

    def commit(self, commit: Commit) -> None:
        text = self.sessions.get(commit.session_id, [])
        if len(text) != commit.position:
            self.sessions.pop(commit.session_id, None)
            raise SessionRejectedError("missed")
        text += commit.token_ids
        self.depths[commit.session_id] = commit

    def close(self, session_id: int) -> None:
        self.sessions.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        self._called("propose", *session_ids)
        if self.error is not None:
            raise self.error
        first = [i for i in session_ids if i in self.at_once]
        answered = first if first or not self.at_least else session_ids
        return [self._proposal(self.depths[i], self.sessions[i]) for i in answered]

    def work(self) -> bool:
        if self.num_works:
            self.num_works -= 1
            self._called("work")
        return self.num_works > 0

    def take_evicted(self) -> list[int]:
        evicted, self.evicted = self.evicted, []
        return evicted

    def _called(self, name: str, *session_ids: int) -> None:
        self.calls.put((name, session_ids))
        assert self.gate.wait(TIMEOUT_S)

    @staticmethod
    def _proposal(commit: Commit, text: list[int]) -> Proposal:
        return Proposal(
            commit.session_id,
            len(text),
            text[-1],
            (len(text),) * commit.depth,
            "model",
            commit_sent_at_ns=commit.sent_at_ns,
        )

    def next_call(self) -> tuple[str, int]:
        name, session_ids = self.calls.get(timeout=TIMEOUT_S)
        return name, len(session_ids)


@pytest.fixture
def proposer() -> ScriptedProposer:
    return ScriptedProposer()


@pytest.fixture
def service(proposer: ScriptedProposer) -> Iterator[DraftService]:
    service = DraftService(proposer, max_frames=8)
    service.start()
    yield service
    proposer.gate.set()
    service.close()


def opened(session_id: int, first_token: int = 1) -> OpenSession:
    return OpenSession(session_id, (first_token, 2, 3), 3, SamplingSettings(), depth=4)


def commit(session_id: int, position: int = 3, depth: int = 2, sent_at_ns: int = 9) -> Commit:
    return Commit(session_id, position, (7,), depth, sent_at_ns)


def frame_of(*items: OpenSession | Commit, closes: tuple[int, ...] = ()) -> SessionFrame:
    opens = tuple(item for item in items if isinstance(item, OpenSession))
    return SessionFrame(opens, tuple(i for i in items if isinstance(i, Commit)), closes)


def block(service: DraftService, proposer: ScriptedProposer, router: Router) -> None:
    """Leaves the engine inside a `propose`, so that what comes next comes together."""
    service.received(router, frame_of(opened(1000)))
    assert proposer.next_call() == ("open", 1)
    proposer.gate.clear()
    service.received(router, frame_of(commit(1000)))
    assert proposer.next_call() == ("propose", 1)


def test_a_commit_is_answered_under_the_routers_id(service: DraftService) -> None:
    router = Router()
    service.connected(router)
    service.received(router, frame_of(opened(5), commit(5)))
    (proposal,) = router.next_frame().proposals
    assert (proposal.session_id, proposal.position, proposal.last_token_id) == (5, 4, 7)
    assert proposal.token_ids == (4, 4)
    assert proposal.commit_sent_at_ns == 9
    assert 0 <= proposal.draft_time_us < TIMEOUT_S * 1e6


def test_routers_may_use_the_same_ids(service: DraftService) -> None:
    first, second = Router(), Router()
    service.received(first, frame_of(opened(1), commit(1)))
    service.received(second, frame_of(opened(1), commit(1, depth=3)))
    assert len(first.next_frame().proposals[0].token_ids) == 2
    assert len(second.next_frame().proposals[0].token_ids) == 3


def test_all_waiting_sessions_are_drafted_in_one_batch(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    first, second, blocker = Router(), Router(), Router()
    for router in (first, second):
        service.received(router, frame_of(opened(1)))
        assert proposer.next_call() == ("open", 1)
    block(service, proposer, blocker)
    service.received(first, frame_of(commit(1)))
    service.received(second, frame_of(commit(1)))
    proposer.gate.set()
    assert proposer.next_call() == ("propose", 2)
    assert first.next_frame().proposals[0].session_id == 1
    assert second.next_frame().proposals[0].session_id == 1


def test_who_is_answered_early_is_not_held_up_by_the_others(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    router = Router()
    service.received(router, frame_of(opened(1), opened(2), opened(3)))
    for _ in range(3):
        assert proposer.next_call() == ("open", 1)
    proposer.at_once = {2}
    service.received(router, frame_of(commit(1), commit(2), commit(3)))

    first, second = router.next_frame(), router.next_frame()

    assert [proposal.session_id for proposal in first.proposals] == [2]
    assert [proposal.session_id for proposal in second.proposals] == [1, 3]
    assert service.stats().num_proposals == 3


def test_a_proposer_without_an_answer_is_not_asked_for_ever(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    router = Router()
    proposer.at_once, proposer.at_least = {2}, 0
    service.received(router, frame_of(opened(1), commit(1)))
    assert proposer.next_call() == ("open", 1)
    assert proposer.next_call() == ("propose", 1)
    service.received(router, frame_of(opened(2), commit(2)))

    assert [proposal.session_id for proposal in router.next_frame().proposals] == [2]


def test_of_several_commits_only_the_last_is_answered(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    router, blocker = Router(), Router()
    service.received(router, frame_of(opened(1)))
    assert proposer.next_call() == ("open", 1)
    block(service, proposer, blocker)
    service.received(router, frame_of(commit(1, 3, sent_at_ns=1)))
    service.received(router, frame_of(commit(1, 4, sent_at_ns=2)))
    proposer.gate.set()
    (proposal,) = router.next_frame().proposals
    assert (proposal.position, proposal.commit_sent_at_ns) == (5, 2)
    assert service.stats().num_proposals == 2  # the blocker's and this one


def test_depth_0_wants_no_answer(service: DraftService) -> None:
    router = Router()
    service.received(router, frame_of(opened(1), commit(1, depth=0)))
    service.received(router, frame_of(commit(1, 4, depth=1)))
    (proposal,) = router.next_frame().proposals
    assert proposal.position == 5


def test_commits_go_before_prefills_and_prefills_one_a_turn(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    router, blocker = Router(), Router()
    service.received(router, frame_of(opened(1)))
    assert proposer.next_call() == ("open", 1)
    block(service, proposer, blocker)
    service.received(router, frame_of(opened(2), opened(3), commit(1), commit(2)))
    proposer.gate.set()
    calls = [proposer.next_call() for _ in range(4)]
    assert calls == [("propose", 1), ("open", 1), ("propose", 1), ("open", 1)]


def test_other_work_is_done_between_turns_until_there_is_none(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    router = Router()
    proposer.num_works = 3
    proposer.gate.clear()
    service.received(router, frame_of(opened(1)))
    assert proposer.next_call() == ("open", 1)
    service.received(router, frame_of(opened(2), commit(1)))
    proposer.gate.set()
    calls = [proposer.next_call() for _ in range(5)]
    assert calls == [("propose", 1), ("open", 1), ("work", 0), ("work", 0), ("work", 0)]


def test_a_missed_commit_is_reported_once_until_reopened(service: DraftService) -> None:
    router = Router()
    service.received(router, frame_of(opened(1), commit(1, position=8)))
    assert router.next_frame() == ProposalFrame(lost=(1,))
    service.received(router, frame_of(commit(1, position=9)))
    service.received(router, frame_of(opened(1), commit(1)))
    assert [p.session_id for p in router.next_frame().proposals] == [1]
    service.received(router, frame_of(closes=(1,)))
    service.received(router, frame_of(commit(1)))
    assert router.next_frame() == ProposalFrame(lost=(1,))


def test_rejected_and_evicted_sessions_are_lost(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    router = Router()
    proposer.rejected_tokens.add(66)
    service.received(router, frame_of(opened(1, first_token=66), commit(1)))
    assert router.next_frame() == ProposalFrame(lost=(1,))
    service.received(router, frame_of(opened(2), commit(2)))
    assert router.next_frame().lost == ()
    proposer.evicted = list(proposer.sessions)
    service.received(router, frame_of(opened(3), commit(3)))
    assert router.next_frame() == ProposalFrame(lost=(2,))
    assert len(router.next_frame().proposals) == 1
    stats = service.stats()
    assert (stats.num_rejected, stats.num_evicted) == (1, 1)


def test_a_routers_end_closes_its_sessions(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    router, other = Router(), Router()
    service.received(router, frame_of(opened(1), commit(1)))
    router.next_frame()
    service.disconnected(router)
    service.received(other, frame_of(opened(1), commit(1)))
    other.next_frame()
    assert len(proposer.sessions) == 1


def test_an_overflow_loses_the_routers_sessions(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    router, blocker = Router(), Router()
    service.received(router, frame_of(opened(1), commit(1)))
    router.next_frame()
    for _ in range(2):
        proposer.next_call()
    block(service, proposer, blocker)
    for position in range(4, 13):
        service.received(router, frame_of(commit(1, position), opened(2)))
    proposer.gate.set()
    assert sorted(router.next_frame().lost) == [1, 2]


def test_an_error_makes_the_service_unhealthy(
    service: DraftService, proposer: ScriptedProposer
) -> None:
    service.check_health()
    proposer.error = ZeroDivisionError("bad kernel")
    service.received(Router(), frame_of(opened(1), commit(1)))
    assert proposer.next_call() == ("open", 1)
    assert proposer.next_call() == ("propose", 1)
    service.close()
    with pytest.raises(StartupError, match="bad kernel"):
        service.check_health()


def test_an_engine_that_hangs_makes_the_service_unhealthy(
    service: DraftService, proposer: ScriptedProposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "LONGEST_TURN_S", 0.05)
    time.sleep(0.1)
    service.check_health()  # nothing to do is no fault
    proposer.gate.clear()
    service.received(Router(), frame_of(opened(1)))
    assert proposer.next_call() == ("open", 1)
    time.sleep(0.1)
    with pytest.raises(StartupError, match="hung"):
        service.check_health()
    proposer.gate.set()


def test_a_proposer_that_speaks_of_closed_sessions_harms_nobody() -> None:
    service, router = DraftService(Saboteur()), Router()
    service.start()
    for session_id in range(1, 30):
        service.received(router, frame_of(opened(session_id), commit(session_id)))
        router.next_frame()
        service.received(router, frame_of(closes=(session_id,)))
    service.check_health()
    service.close()


def test_what_was_reported_lost_is_not_remembered_for_ever() -> None:
    replies, router = Replies(), Router()
    addresses = [Address(router, i) for i in range(10_000)]
    for address in addresses:
        replies.add_lost(address)
    replies.send()
    replies.add_lost(addresses[-1])  # lately
    replies.send()
    replies.add_lost(addresses[0])
    replies.send()
    assert [len(router.next_frame().lost) for _ in range(2)] == [10_000, 1]


def test_a_service_that_has_not_started_is_unhealthy(proposer: ScriptedProposer) -> None:
    with pytest.raises(StartupError, match="not been started"):
        DraftService(proposer).check_health()


def test_warming_up_leaves_no_session(proposer: ScriptedProposer) -> None:
    DraftService(proposer).warm_up()
    assert [proposer.next_call()[0] for _ in range(4)] == ["open", "propose"] * 2
    assert proposer.sessions == {}


def test_what_warms_up_is_shared_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, opened = PromptLookup(PromptLookupConfig(shared_tokens=1000)), []
    monkeypatch.setattr(lookup, "open", lambda s: opened.append(s) or PromptLookup.open(lookup, s))
    DraftService(lookup).warm_up()
    assert [session.is_shareable for session in opened] == [False, False]


def test_it_serves_a_real_proposer() -> None:
    service, router = DraftService(PromptLookup(PromptLookupConfig())), Router()
    service.warm_up()
    service.start()
    repeating = OpenSession(4, (1, 2, 3, 1, 2), 5, SamplingSettings(), depth=3)
    service.received(router, frame_of(repeating, Commit(4, 5, (3, 1), 2, 0)))
    assert router.next_frame().proposals[0].token_ids == (2, 3)
    service.received(router, frame_of(closes=(4,)))
    service.close()


class Ahead(ScriptedProposer):
    """Answers nothing that it has drafted ahead, and drafts ahead for one session that is gone."""

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        self._called("propose", *session_ids)
        return []

    def take_ahead(self) -> list[Proposal]:
        return [
            Proposal(i, len(text) + 1, 8, (9,), "model", commit_sent_at_ns=9)
            for i, text in [*self.sessions.items(), (10**6, [1])]
            if i in self.depths
        ]

    def leave_out(self, session_id: int, outcomes: Collection[tuple[int, int]]) -> None: ...


def test_what_is_drafted_ahead_is_sent_as_it_comes() -> None:
    proposer, router = Ahead(), Router()
    service = DraftService(proposer)
    service.start()
    service.received(router, frame_of(opened(5), commit(5)))
    (proposal,) = router.next_frame().proposals
    service.close()
    assert (proposal.session_id, proposal.position, proposal.last_token_id) == (5, 5, 8)
    assert proposal.draft_time_us == 0  # nobody waited for it
    assert proposal.commit_sent_at_ns == 9  # it shows that the draft has not stalled
