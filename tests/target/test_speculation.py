import itertools
import math
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest

from specray.control.depth import NO_LIMIT, DepthPlan
from specray.control.planner import Planner, Surroundings
from specray.control.probes import PROBE_DEPTH
from specray.control.roofline import StepLoad
from specray.control.survival import Offer
from specray.models.ngrams import NgramModel, NgramOrder, context_keys
from specray.target.answer_memory import AnswerMemory
from specray.target.buffer import ProposalBuffer, Verdict
from specray.target.patience import Patience
from specray.target.session import Session
from specray.target.speculation import Speculation
from specray.target.stop_gap import StopGap
from specray.types import (
    Accepted,
    Commit,
    FixedRule,
    OpenSession,
    Proposal,
    QpsRule,
    SamplingSettings,
    SessionFrame,
    Source,
    SpeculationPolicy,
    TruncatedDistributions,
)

STEP_S = 0.050
TOKEN_S = 0.0005
MAX_WAIT_S = 0.020
PROMPT = (1, 2, 3, 4)
MAX_DEPTH = 5
WRONG = 99  # a token that hardly ever follows


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Streams:
    """The routers, as the test wants them."""

    def __init__(self) -> None:
        self.policy = SpeculationPolicy(max_depth=MAX_DEPTH, max_wait_ms=1e3 * MAX_WAIT_S)
        self.connected = {"r"}
        self.sent: list[tuple[str, SessionFrame]] = []
        self.lost: list[int] = []
        self.departed: list[str] = []
        self.is_trusted = True

    def trusts(self, router: str) -> bool:
        return self.is_trusted

    def choose_router(self) -> str:
        return min(self.connected, default="")

    def is_connected(self, router: str) -> bool:
        return router in self.connected

    def send(self, router: str, frame: SessionFrame) -> None:
        self.sent.append((router, frame))

    def take_lost(self) -> list[int]:
        lost, self.lost = self.lost, []
        return lost

    def take_departed(self) -> list[str]:
        departed, self.departed = self.departed, []
        return departed

    def take_sent(self) -> list[tuple[str, SessionFrame]]:
        sent, self.sent = self.sent, []
        return sent

    def take_frame(self) -> SessionFrame:
        """The one frame that was sent since the last call."""
        ((_, frame),) = self.take_sent()
        return frame


class Buffer(ProposalBuffer):
    """Proposals arrive on the fake clock; a wait lets it run on to the next arrival."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(100, MAX_DEPTH, clock)
        self._fake_clock = clock
        self._under_way: list[tuple[float, Proposal]] = []
        self.waits: list[float] = []  # in seconds

    def arrive(self, at: float, proposal: Proposal) -> None:
        self._under_way.append((at, proposal))
        self._under_way.sort(key=lambda item: item[0])

    def run_clock(self, until: float) -> None:
        while self._under_way and self._under_way[0][0] <= until:
            at, proposal = self._under_way.pop(0)
            self._fake_clock.now = max(self._fake_clock.now, at)
            self.offer(proposal, "r")
        self._fake_clock.now = max(self._fake_clock.now, until)

    def wait_for(self, session_ids: Collection[int], deadline: float) -> None:
        started = self._fake_clock.now
        while any(self.peek(i) is None for i in session_ids):
            if not self._under_way or self._under_way[0][0] > deadline:
                self.run_clock(deadline)
                break
            self.run_clock(self._under_way[0][0])
        self.waits.append(self._fake_clock.now - started)


Answer = Callable[[Commit, tuple[int, ...]], Proposal | None]
Foresight = Callable[[int, tuple[int, ...]], Proposal | None]


class World:
    """An engine, a draft behind a router, and the time that both take."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.streams = Streams()
        self.buffer = Buffer(self.clock)
        self.speculation = Speculation(self.buffer, self.streams, self.clock)
        self.sessions: dict[int, Session] = {}
        self.tokens: dict[int, list[int]] = {}
        self.latency_s = 0.002
        self.draft_token_s = 0.0  # and for each token of an answer
        self.step_s = STEP_S
        self.token_s = TOKEN_S
        self.turnaround_s = 0.0  # from a step to the next
        self.quality = 1.0  # 1: every draft token is accepted; 0: none
        self.model_quality = 1.0  # of that, for models
        self.answer: Answer = perfect
        self.foresee: Foresight = nothing  # what is there before the commit that it extends
        self.token_at: Callable[[int], int] = lambda position: position % 100  # the target's own
        self.num_used: list[int] = []  # proposals, by step
        self._names = itertools.count(1)

    def open(
        self,
        router: str = "r",
        max_tokens: int = 10_000,
        max_depth: int = 64,
        temperature: float = 0.7,
    ) -> Session:
        session_id = next(self._names)
        tokens = list(PROMPT)
        session = Session(
            *(session_id, router, tokens, len(tokens), len(tokens) + max_tokens, max_depth),
            SamplingSettings(temperature),
            uses_distributions=True,
        )
        self.sessions[session_id], self.tokens[session_id] = session, tokens
        self.speculation.open(session)
        return session

    def close(self, session: Session) -> None:
        del self.sessions[session.session_id]
        self.speculation.close(session.session_id)

    def step(
        self, *, may_wait: bool = True, num_others: int = 0, max_drafts: int = NO_LIMIT
    ) -> dict[int, Proposal]:
        """One decode step of all sessions, and the draft's answers to its commits."""
        ids = list(self.sessions)
        self.buffer.run_clock(self.clock.now + self.turnaround_s)
        self.speculation.expect(Surroundings(max_drafts=max_drafts))
        chosen = self.speculation.propose(ids, num_others, may_wait=may_wait)
        self.num_used.append(len(chosen))
        self.speculation.learn()
        self.speculation.expect(Surroundings())
        num_tokens = len(ids) + num_others + sum(len(p.token_ids) for p in chosen.values())
        step_s = self.step_s + self.token_s * num_tokens
        self.buffer.run_clock(self.clock.now + step_s)
        before = {session_id: len(self.tokens[session_id]) for session_id in ids}
        for session_id in ids:
            self._verify(session_id, chosen.get(session_id))
            if (proposal := self.foresee(session_id, tuple(self.tokens[session_id]))) is not None:
                self.buffer.offer(proposal, "r")
        num_committed = sum(len(self.tokens[i]) - before[i] for i in ids)
        num_requests = len(ids) + num_others
        self.speculation.observe_step(
            StepLoad(num_requests, num_tokens, 0),
            num_requests,
            num_committed,
            step_s,
        )
        num_sent = len(self.streams.sent)
        self.speculation.commit(before, num_others, may_wait=may_wait)
        self._draft(self.streams.sent[num_sent:])
        return chosen

    def run(self, num_steps: int, *, may_wait: bool = True) -> None:
        for _ in range(num_steps):
            self.step(may_wait=may_wait)

    def _verify(self, session_id: int, proposal: Proposal | None) -> None:
        token_ids = proposal.token_ids if proposal is not None else ()
        num_accepted = round(self.quality * len(token_ids))
        if proposal is not None and proposal.source == "model":
            num_accepted = round(self.model_quality * num_accepted)
        if proposal is not None:
            self.speculation.observe_verification(
                session_id, proposal.source, len(token_ids), num_accepted
            )
        position = len(self.tokens[session_id]) + num_accepted
        added = [*token_ids[:num_accepted], self.token_at(position)]
        self.tokens[session_id].extend(added)

    def _draft(self, sent: list[tuple[str, SessionFrame]]) -> None:
        for _, frame in sent:
            for commit in frame.commits:
                tokens = tuple(self.tokens.get(commit.session_id, ()))
                proposal = self.answer(commit, tokens) if commit.depth else None
                if proposal is not None:
                    drafted_s = self.draft_token_s * len(proposal.token_ids)
                    self.buffer.arrive(self.clock.now + self.latency_s + drafted_s, proposal)


def perfect(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
    return right(commit.session_id, tokens, commit.depth)


def short(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
    """One token: overtaken by a step, nothing of it is left."""
    proposal = perfect(commit, tokens)
    return replace(proposal, token_ids=proposal.token_ids[:1])


def silent(_commit: Commit, _tokens: tuple[int, ...]) -> None:
    return None


def nothing(_session_id: int, _tokens: tuple[int, ...]) -> None:
    return None


def right(session_id: int, tokens: tuple[int, ...], num_tokens: int) -> Proposal:
    guess = tuple((len(tokens) + i) % 100 for i in range(num_tokens))
    return Proposal(session_id, len(tokens), tokens[-1], guess, "model")


@pytest.fixture
def world() -> World:
    return World()


# Telling the drafts.


def test_a_request_is_announced_when_it_arrives(world: World) -> None:
    session = world.open(max_depth=3)

    frame = world.streams.take_frame()
    assert frame == SessionFrame(
        opens=(OpenSession(session.session_id, PROMPT, 4, SamplingSettings(0.7), 3),)
    )


def test_an_announcement_says_which_engine_verifies(world: World) -> None:
    """Drafts that several share learn the pace of each."""
    world.speculation = Speculation(world.buffer, world.streams, world.clock, name="host:1")
    world.open()

    assert world.streams.take_frame().opens[0].target == "host:1"


def test_a_commit_says_what_was_added_and_where(world: World) -> None:
    session = world.open()
    world.run(3)
    world.streams.take_sent()
    before = len(session.token_ids)
    (proposal,) = world.step().values()

    (commit,) = world.streams.take_frame().commits
    assert len(proposal.token_ids) == MAX_DEPTH
    assert commit.position == before
    assert list(commit.token_ids) == world.tokens[session.session_id][before:]
    assert commit.sent_at_ns == int(world.clock.now * 1e9)


def test_a_draft_that_follows_the_frames_knows_every_token(world: World) -> None:
    for _ in range(3):
        world.open()
    world.run(20)
    followed: dict[int, list[int]] = {}
    for _, frame in world.streams.sent:
        for opened in frame.opens:
            followed[opened.session_id] = list(opened.token_ids)
        for commit in frame.commits:
            assert commit.position == len(followed[commit.session_id])
            followed[commit.session_id].extend(commit.token_ids)

    assert followed == world.tokens


def test_each_step_is_one_frame_per_router(world: World) -> None:
    world.streams.connected.add("s")
    sessions = [world.open(router) for router in ("r", "s", "r", "s")]
    world.streams.take_sent()
    world.close(sessions[0])
    world.step()

    sent = dict(world.streams.sent)
    assert len(world.streams.sent) == 2
    assert [c.session_id for c in sent["r"].commits] == [3]
    assert sent["r"].closes == (1,)
    assert [c.session_id for c in sent["s"].commits] == [2, 4]


def test_a_session_is_closed_exactly_once(world: World) -> None:
    session = world.open()
    world.streams.take_sent()
    world.close(session)
    world.speculation.close(session.session_id)
    world.speculation.close(12345)
    world.speculation.flush()
    world.speculation.flush()

    assert world.streams.take_frame() == SessionFrame(closes=(session.session_id,))
    assert world.buffer.lose("r") == []
    assert world.speculation.stats().num_open_sessions == 0


def test_a_closed_session_is_neither_verified_nor_committed(world: World) -> None:
    session = world.open()
    world.run(3)
    world.close(session)
    world.streams.take_sent()

    assert world.speculation.propose([session.session_id], 0, may_wait=True) == {}
    world.speculation.commit({session.session_id: 4}, 0)
    assert not any(frame.commits for _, frame in world.streams.sent)


def test_a_lost_session_is_opened_again_with_all_its_tokens(world: World) -> None:
    session, other = world.open(), world.open()
    world.run(3)
    world.streams.take_sent()
    before = tuple(session.token_ids)
    world.streams.lost = [session.session_id, 999]
    world.step()

    frame = world.streams.take_frame()
    (opened,) = frame.opens
    assert (opened.session_id, opened.num_prompt_tokens) == (session.session_id, 4)
    assert opened.token_ids == before
    assert {c.session_id: c.position for c in frame.commits}[session.session_id] == len(before)
    assert len(frame.commits) == 2
    world.step()
    assert not world.streams.take_frame().opens
    assert other.is_announced


def test_a_session_that_no_draft_can_hold_is_announced_ever_more_seldom(world: World) -> None:
    """Else each step would send the whole request, for nothing."""
    world.answer = silent
    session = world.open(max_tokens=20_000)
    num_announced = 0
    for _ in range(1000):
        world.step()
        opened = [o for _, frame in world.streams.take_sent() for o in frame.opens]
        world.streams.lost = [o.session_id for o in opened]
        num_announced += len(opened)

    assert 3 <= num_announced <= 12
    world.answer = perfect
    world.run(600)
    assert session.num_losses == 0


def test_sessions_that_drive_each_other_out_are_announced_ever_more_seldom(world: World) -> None:
    """A draft without room for all holds each for a few steps, in which it proposes something."""
    session = world.open(max_tokens=20_000)
    num_announced, left = 0, 5
    for _ in range(1000):
        world.step()
        opened = [o for _, frame in world.streams.take_sent() for o in frame.opens]
        num_announced += len(opened)
        left = 5 if opened else left - 1
        if left == 0:
            world.streams.lost = [session.session_id]

    assert 3 <= num_announced <= 15


def test_a_new_request_is_judged_by_what_its_draft_did_for_others(world: World) -> None:
    """Not by the rate of a source that nobody uses: a good draft would not be asked again."""
    assert world.open().source == "prompt_lookup"  # nothing is known
    world.run(5)

    assert world.open().source == "model"


def test_proposals_that_never_come_for_want_of_a_draft_are_not_counted_on(world: World) -> None:
    patience = Patience()
    world.speculation = Speculation(world.buffer, world.streams, world.clock, patience=patience)
    world.answer = silent
    for _ in range(40):
        session = world.open()
        world.step()
        world.streams.lost = [session.session_id]
        world.step()
        world.close(session)

    assert patience.chance < 0.5


def test_proposals_that_are_never_worth_verifying_are_soon_asked_for_no_more(world: World) -> None:
    """Else each step waits for one, verifies nothing, and never learns that it should not ask."""
    world.open()
    world.run(60)

    def unsure(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
        depth = commit.depth
        proposal = perfect(commit, tokens)
        return replace(proposal, token_ids=(WRONG,) * depth, confidences=(0.001,) * depth)

    world.answer = unsure
    world.quality = 0.0
    world.run(200)
    world.streams.take_sent()
    world.run(400)
    commits = [commit for _, frame in world.streams.take_sent() for commit in frame.commits]
    num_asked = sum(commit.depth > 0 for commit in commits)

    assert sum(world.num_used[-400:]) < 40
    assert num_asked < 60


def test_a_draft_that_is_late_under_load_is_used_at_once_when_the_load_has_gone(
    world: World,
) -> None:
    world.answer = short
    world.open()
    world.run(30)
    others = [world.open() for _ in range(7)]
    world.latency_s = 4 * MAX_WAIT_S
    world.run(300)
    assert sum(world.num_used[-50:]) < 8
    for session in others:
        world.close(session)
    world.latency_s = 0.002
    world.run(20)

    assert sum(world.num_used[-20:]) >= 16


def test_probes_under_load_are_not_held_against_the_draft_when_the_load_has_gone(
    world: World,
) -> None:
    """Under load none is worth verifying, however good; one request alone resumes soon."""
    world.token_s, world.latency_s = 0.010, 0.015

    def run(num_steps: int) -> None:
        for step in range(num_steps):
            world.quality = 1.0 if step % 5 < 3 else 0.0
            world.step()

    world.open()
    run(100)
    others = [world.open() for _ in range(11)]
    run(3000)
    assert sum(world.num_used[-500:]) < 100  # probes of four
    for session in others:
        world.close(session)
    run(60)

    assert sum(world.num_used[-60:-40]) > 0
    assert sum(world.num_used[-30:]) > 25


def test_what_finds_no_room_in_a_step_is_not_held_against_the_draft(
    world: World,
) -> None:
    patience = Patience()
    world.speculation = Speculation(world.buffer, world.streams, world.clock, patience=patience)
    world.open()
    world.run(60)
    for _ in range(20):
        world.step(max_drafts=0)

    assert sum(world.num_used[-20:]) == 0
    assert patience.chance > 0.9


def test_a_wait_that_a_lost_draft_ended_says_nothing_of_waits(world: World) -> None:
    patience = Patience()
    world.speculation = Speculation(world.buffer, world.streams, world.clock, patience=patience)
    session = world.open()
    world.run(3)
    for _ in range(5):
        patience.observe_no_need()
    world.answer = silent
    world.step()
    wait = world.speculation.begin_wait([session.session_id], 0, may_wait=True)
    assert wait is not None
    world.buffer.lose("r")
    before = patience.expected_wait_s(1.0, 4)
    world.speculation.end_wait(wait)

    assert 0 < patience.expected_wait_s(1.0, 4) == before


def test_a_stream_that_takes_anothers_place_forgets_what_it_heard_too_early(world: World) -> None:
    """A session may be announced to it before the old stream's end is noticed."""
    session = world.open()
    world.streams.take_sent()
    world.streams.departed = ["r"]  # "r" is connected: by the new stream, which got the session
    world.speculation.propose([], 0, may_wait=False)

    assert world.streams.take_frame() == SessionFrame(closes=(session.session_id,))
    world.close(session)
    world.speculation.flush()
    assert world.streams.take_sent() == []


def test_a_router_that_comes_back_gets_all_its_sessions_again(world: World) -> None:
    sessions = [world.open(), world.open()]
    world.run(3)
    world.streams.take_sent()
    world.streams.connected, world.streams.departed = set(), ["r"]
    world.run(2)
    assert not world.streams.take_sent()

    world.streams.connected = {"r"}
    lengths = [len(s.token_ids) for s in sessions]
    world.step()

    frame = world.streams.take_frame()
    assert [len(opened.token_ids) for opened in frame.opens] == lengths
    assert len(frame.commits) == 2
    world.step()
    assert world.num_used[-1] == 2


def test_a_router_that_comes_later_gets_the_session_then(world: World) -> None:
    world.streams.connected = set()
    world.open()
    world.run(2)
    assert not world.streams.take_sent()
    world.streams.connected = {"r"}
    world.step()

    assert len(world.streams.take_frame().opens) == 1


def test_a_session_of_any_router_finds_one_when_it_comes(world: World) -> None:
    world.streams.connected = set()
    session = world.open(router="")
    session.is_any_routers = True
    world.run(2)
    assert not world.streams.take_sent()
    world.streams.connected = {"r"}
    world.step()

    assert len(world.streams.take_frame().opens) == 1
    world.step()
    assert world.num_used[-1] == 1


def test_a_session_of_any_router_finds_another_when_its_own_goes(world: World) -> None:
    session = world.open()
    session.is_any_routers = True
    world.run(3)
    world.streams.take_sent()
    world.streams.connected, world.streams.departed = {"other"}, ["r"]
    world.run(1)

    ((router, frame),) = world.streams.take_sent()
    assert (router, [s.session_id for s in frame.opens]) == ("other", [session.session_id])
    answer = right(session.session_id, tuple(session.token_ids), 1)
    assert world.buffer.offer(answer, "other") is Verdict.KEPT
    assert world.buffer.offer(answer, "r") is Verdict.STALE


def test_nobody_is_told_of_the_end_of_what_he_never_heard_of(world: World) -> None:
    world.streams.connected = set()
    session = world.open()
    world.close(session)
    world.speculation.flush()

    assert not world.streams.sent


def test_nothing_is_left_of_sessions_and_routers_that_went(world: World) -> None:
    sizes = []
    for i in range(30):
        router = f"router-{i}"
        world.streams.connected = {router}
        world.answer = silent if i % 2 else perfect
        session = world.open(router)
        world.run(8)
        world.close(session)
        world.speculation.flush()
        world.streams.departed = [router]
        world.speculation.propose([], 0, may_wait=True)
        sizes.append(sum(len(v) for v in vars(world.speculation).values() if isinstance(v, dict)))

    assert set(sizes) == {0}


# Before a step.


def test_proposals_are_verified_in_the_next_step(world: World) -> None:
    world.open()
    world.open()
    world.run(3)
    chosen = world.step()

    assert {len(p.token_ids) for p in chosen.values()} == {MAX_DEPTH}
    assert world.speculation.stats().num_proposals_used == sum(world.num_used)


@pytest.mark.parametrize(
    ("policy_depth", "own_depth", "expected"), [(5, 64, 5), (2, 64, 2), (5, 3, 3), (5, 1, 1)]
)
def test_depths_stay_below_every_cap(
    world: World, policy_depth: int, own_depth: int, expected: int
) -> None:
    world.streams.policy = SpeculationPolicy(True, policy_depth, 20.0)
    world.open(max_depth=own_depth)
    world.run(2)

    (proposal,) = world.step().values()
    assert len(proposal.token_ids) == expected
    depths = [commit.depth for _, frame in world.streams.sent for commit in frame.commits]
    assert max(depths) == expected


def test_a_proposal_is_cut_to_a_cap_that_was_lowered_meanwhile(world: World) -> None:
    world.open()
    world.run(2)
    world.streams.policy = SpeculationPolicy(True, 2, 20.0)

    (proposal,) = world.step().values()
    assert len(proposal.token_ids) == 2


@pytest.mark.parametrize("policy", [SpeculationPolicy(False, 5, 20.0), SpeculationPolicy(True, 0)])
def test_speculation_can_be_switched_off_and_on(world: World, policy: SpeculationPolicy) -> None:
    world.open()
    world.run(3)
    start, world.streams.policy = world.streams.policy, policy
    world.step()
    world.streams.take_sent()
    num_waits = len(world.buffer.waits)
    world.run(200)

    assert set(world.num_used[-200:]) == {0}
    assert len(world.buffer.waits) == num_waits
    assert world.streams.sent == []
    world.streams.policy = start
    world.run(6)
    assert world.num_used[-1] == 1


def test_a_draft_that_is_left_alone_hears_nothing_until_it_is_to_be_tried(world: World) -> None:
    world.quality = 0.0
    session = world.open()
    world.run(1500)
    world.streams.take_sent()
    world.run(400)
    commits = [commit for _, frame in world.streams.take_sent() for commit in frame.commits]

    probes = [i for i, commit in enumerate(commits) if commit.depth > 0]
    assert 2 <= len(probes) <= 4
    assert len(commits) <= 6 * len(probes)  # and some steps before each
    assert all(commits[i - 1].depth == 0 for i in probes[1:])
    for before, commit in itertools.pairwise(commits):
        assert commit.position == before.position + len(before.token_ids)  # nothing is left out
    tokens = world.tokens[session.session_id]
    for commit in commits:
        end = commit.position + len(commit.token_ids)
        assert list(commit.token_ids) == tokens[commit.position : end]


def test_a_request_that_comes_while_nothing_pays_is_announced_only_to_be_tried(
    world: World,
) -> None:
    world.quality = 0.0
    first = world.open()
    world.run(1000)
    world.streams.take_sent()
    second = world.open()
    assert world.streams.take_sent() == []
    world.close(first)
    length = len(world.tokens[second.session_id])
    while not (sent := world.streams.take_sent()):
        world.step()

    (_, closing), *_ = sent
    assert closing.closes == (first.session_id,)
    while not (opened := [o for _, frame in sent for o in frame.opens]):
        world.step()
        sent = world.streams.take_sent()
    assert opened[0].session_id == second.session_id
    assert len(opened[0].token_ids) >= length


def test_a_request_is_announced_when_it_arrives_though_another_just_had_no_room_left(
    world: World,
) -> None:
    session = world.open()
    world.run(3)
    world.close(session)
    session = world.open(max_tokens=2)
    world.step()
    assert session.wanted_depth == 0
    world.close(session)

    assert world.open().is_announced


@pytest.mark.parametrize("policy", [SpeculationPolicy(False, 5, 20.0), SpeculationPolicy(True, 0)])
def test_a_request_that_may_not_speculate_is_not_announced(
    world: World, policy: SpeculationPolicy
) -> None:
    assert not world.open(max_tokens=1).is_announced
    world.streams.policy = policy

    assert not world.open().is_announced


def test_no_draft_token_lies_beyond_the_end_of_the_answer(world: World) -> None:
    session = world.open(max_tokens=12)
    while len(session.token_ids) < session.max_length:
        room = session.max_length - len(session.token_ids)
        chosen = world.step()
        assert all(len(p.token_ids) < room for p in chosen.values())

    assert len(session.token_ids) == session.max_length
    assert world.buffer.peek(session.session_id) is None  # nor is one asked for, to no end


def test_distributions_are_cut_with_their_tokens(world: World) -> None:
    world.answer = with_distributions
    world.open(max_depth=5)
    world.run(2)
    world.streams.policy = SpeculationPolicy(True, 3, 20.0)

    (proposal,) = world.step().values()
    assert len(proposal.token_ids) == 3
    assert proposal.distributions is not None
    assert proposal.distributions.token_ids[:, 0].tolist() == list(proposal.token_ids)


def test_distributions_are_dropped_where_they_may_not_be_used(world: World) -> None:
    world.answer = with_distributions
    session = world.open()
    session.uses_distributions = False
    world.run(2)

    (proposal,) = world.step().values()
    assert len(proposal.token_ids) == MAX_DEPTH
    assert proposal.distributions is None


def test_distributions_of_a_router_that_lied_are_dropped(world: World) -> None:
    world.answer = with_distributions
    world.open()
    world.streams.is_trusted = False
    world.run(2)

    (proposal,) = world.step().values()
    assert len(proposal.token_ids) == MAX_DEPTH
    assert proposal.distributions is None


def with_distributions(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
    plain = perfect(commit, tokens)
    ids = np.array([plain.token_ids], np.int32).T
    q = TruncatedDistributions(ids, np.ones(ids.shape, np.float32))
    return Proposal(
        plain.session_id, plain.position, plain.last_token_id, plain.token_ids, "model", q
    )


def test_a_proposal_for_another_request_or_place_is_never_used(world: World) -> None:
    def misplaced(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
        kinds = itertools.product((commit.session_id, 3 - commit.session_id), (-1, 0, 1), (0, 1))
        session_id, shift, wrong = list(kinds)[len(tokens) % 12]
        last = (tokens[-1] + wrong) % 100
        return Proposal(session_id, len(tokens) + shift, last, (1,), "model")

    world.answer = misplaced
    world.quality = 0.0
    world.open()
    world.open()
    for _ in range(60):
        states = {i: (len(tokens), tokens[-1]) for i, tokens in world.tokens.items()}
        for session_id, proposal in world.step().items():
            assert proposal.session_id == session_id
            assert (proposal.position, proposal.last_token_id) == states[session_id]


def test_an_empty_proposal_is_an_answer_but_nothing_to_verify(world: World) -> None:
    world.answer = lambda commit, tokens: Proposal(
        commit.session_id, len(tokens), tokens[-1], (), "prompt_lookup"
    )
    world.open()
    world.run(10)

    assert sum(world.num_used) == 0
    assert world.speculation.stats().num_misses == 0
    assert world.buffer.waits == pytest.approx([world.latency_s] * 9)


def test_a_useless_draft_ends_at_depth_0_and_is_probed_without_end(world: World) -> None:
    world.quality = 0.0
    world.open()
    world.run(600)

    assert sum(world.num_used[100:]) < 12
    assert sum(world.num_used[300:]) > 0
    world.quality = 1.0
    world.run(600)
    assert sum(world.num_used[-20:]) == 20


def test_a_probe_is_verified_though_it_does_not_seem_to_pay(world: World) -> None:
    world.quality = 0.0
    world.token_s = 0.050
    world.open()
    world.run(300)
    world.streams.take_sent()
    num_used = sum(world.num_used)
    world.run(300)

    probes = [c for _, frame in world.streams.sent for c in frame.commits if c.depth == PROBE_DEPTH]
    assert len(probes) > 0
    assert sum(world.num_used) >= num_used + len(probes)


# Waiting.


def test_a_step_waits_for_a_proposal_that_is_due_and_no_longer(world: World) -> None:
    world.open()
    world.run(5)

    assert world.buffer.waits == pytest.approx([world.latency_s] * len(world.buffer.waits))
    assert world.num_used[-1] == 1
    assert world.speculation.stats().wait_time.count == len(world.buffer.waits)


def test_a_step_that_may_not_wait_goes_on_at_once(world: World) -> None:
    world.answer = short
    world.open()
    world.run(20, may_wait=False)

    assert not world.buffer.waits
    assert sum(world.num_used) == 0
    assert world.speculation.stats().num_misses > 0


def test_no_step_waits_without_a_draft_that_heard_of_it(world: World) -> None:
    world.streams.connected = set()
    world.open()
    world.run(50)

    assert not world.buffer.waits


def test_no_step_waits_for_a_draft_that_was_lost_meanwhile(world: World) -> None:
    world.open()
    world.run(3)
    num_waits = len(world.buffer.waits)
    world.streams.connected, world.streams.departed = set(), ["r"]
    world.run(50)

    assert len(world.buffer.waits) == num_waits


def test_no_step_waits_for_what_is_already_there(world: World) -> None:
    world.latency_s = 0.0
    world.open()
    for _ in range(10):
        world.step()
        world.buffer.run_clock(world.clock.now)

    assert not world.buffer.waits
    assert world.num_used[-1] == 1


@pytest.mark.parametrize("latency_s", [0.019, 0.021, 0.049, 0.3, math.inf])
@pytest.mark.parametrize("num_sessions", [1, 3])
def test_no_step_waits_longer_than_allowed(
    world: World, latency_s: float, num_sessions: int
) -> None:
    world.latency_s = latency_s
    for _ in range(num_sessions):
        world.open()
    world.run(300)

    assert world.buffer.waits
    assert max(world.buffer.waits) <= MAX_WAIT_S + 1e-9


@pytest.mark.parametrize("num_sessions", [1, 8])
def test_a_draft_that_never_answers_costs_a_few_waits_in_all(
    world: World, num_sessions: int
) -> None:
    world.answer = silent
    for _ in range(num_sessions):
        world.open()
    world.run(500)
    for _ in range(20):  # nor does each new request pay for it again
        world.open()
        world.run(5)

    assert sum(world.buffer.waits) <= 4 * MAX_WAIT_S + 1e-9


@pytest.mark.parametrize("latency_s", [0.025, 0.040, 0.2])
def test_a_draft_that_is_always_too_late_costs_next_to_nothing(
    world: World, latency_s: float
) -> None:
    world.latency_s = latency_s
    world.open()
    world.run(1000)

    assert sum(world.buffer.waits) < 0.01 * 1000 * STEP_S
    assert len(world.buffer.waits) < 30


def test_a_draft_that_becomes_fast_again_is_used_again(world: World) -> None:
    world.open()
    world.run(20)
    world.latency_s = 0.2
    world.run(200)
    world.latency_s = 0.002
    world.run(800)

    assert sum(world.num_used[-50:]) >= 49  # and perhaps a plain turn


def test_where_everything_is_verified_a_plain_step_is_seen_now_and_then(world: World) -> None:
    """Also where steps wait for proposals, so that plans are made for them twice."""
    for _ in range(4):
        world.open()
    world.run(600)

    plain = [number for number, num_used in enumerate(world.num_used) if num_used == 0]
    assert sum(world.num_used) > 4 * 580
    assert 3 <= len([number for number in plain if number > 10]) <= 8
    assert 580 < len(world.buffer.waits) <= 600 - len(plain)  # the others waited
    assert world.speculation.stats().num_misses == 0


def test_a_draft_too_slow_for_the_whole_depth_is_waited_for_at_a_smaller_one(world: World) -> None:
    world.draft_token_s = 0.3 * MAX_WAIT_S  # three fit
    world.open()
    world.run(300)

    wanted = [c.depth for _, frame in world.streams.sent[-50:] for c in frame.commits]
    assert 2 <= sum(wanted) / len(wanted) <= 3.5
    assert sum(world.num_used[-50:]) >= 45


def test_a_draft_that_falls_silent_and_answers_again_is_used_again(world: World) -> None:
    world.open()
    world.run(20)
    world.answer = silent
    world.run(20)
    world.answer = perfect
    world.run(300)

    assert sum(world.num_used[-50:]) >= 49  # and perhaps a plain turn


def test_a_router_that_was_silent_is_waited_for_again_where_sessions_end_before_it_answers(
    world: World,
) -> None:
    world.step_s, world.latency_s = 0.002, 0.004

    def serve(num_sessions: int) -> None:
        for _ in range(num_sessions):
            session = world.open()
            world.run(2)
            world.close(session)

    serve(50)
    assert sum(world.num_used[-20:]) >= 9
    world.answer = silent
    serve(10)
    world.answer = perfect
    serve(150)

    assert sum(world.num_used[-20:]) >= 9


@pytest.mark.parametrize("latency_s", [0.75 * MAX_WAIT_S, 1.5 * MAX_WAIT_S, 10 * MAX_WAIT_S])
def test_probes_of_a_draft_that_takes_many_steps_cost_hardly_anything(
    world: World, latency_s: float
) -> None:
    """Their steps wait for longer than steps take."""
    world.step_s, world.latency_s = 0.002, latency_s
    session = world.open(max_tokens=100_000)
    world.run(3000)
    world.streams.take_sent()
    started, before = world.clock.now, len(session.token_ids)
    world.run(5000)
    seconds, num_tokens = world.clock.now - started, len(session.token_ids) - before

    assert any(c.depth for _, frame in world.streams.take_sent() for c in frame.commits)
    assert num_tokens / seconds > 0.99 / (world.step_s + world.token_s)


def test_a_draft_that_becomes_fast_is_soon_found_out_where_waits_are_longer_than_steps(
    world: World,
) -> None:
    world.step_s, world.latency_s = 0.002, 3 * MAX_WAIT_S
    world.open(max_tokens=1_000_000)
    world.run(5000)
    world.latency_s = 0.001
    started = world.clock.now
    while sum(world.num_used[-100:]) < 90:
        world.run(10)
        assert world.clock.now - started < 15


def test_drafts_are_told_whom_a_step_waits_for(world: World) -> None:
    world.open()
    world.run(20)
    world.streams.take_sent()
    num_waits = len(world.buffer.waits)
    world.run(100)
    asking = [c for _, frame in world.streams.take_sent() for c in frame.commits if c.depth]
    awaited = [commit for commit in asking if not commit.is_unawaited]
    assert 90 <= len(world.buffer.waits) - num_waits <= len(awaited)

    world.foresee = lambda i, tokens: right(i, tokens, 2)
    world.run(20)
    asking = [c for _, frame in world.streams.take_sent() for c in frame.commits if c.depth]
    assert len(asking) >= 15
    assert all(commit.is_unawaited for commit in asking)  # as they are there


def test_a_mute_draft_is_asked_though_no_step_waits_for_it(world: World) -> None:
    """It may have stalled, which its router finds out by what it owes."""
    world.open()
    world.run(20)
    world.answer = silent
    world.run(10)
    world.streams.take_sent()
    num_waits = len(world.buffer.waits)
    world.run(100)

    asking = [c for _, frame in world.streams.take_sent() for c in frame.commits if c.depth]
    assert asking
    assert not any(commit.is_unawaited for commit in asking)
    assert len(world.buffer.waits) == num_waits


def test_a_mute_draft_is_asked_where_no_step_could_wait(world: World) -> None:
    """As while prompts are read; a draft that hangs is to be found out then, too."""
    world.open()
    world.run(20)
    world.answer = silent
    world.run(40, may_wait=False)
    world.streams.take_sent()
    world.run(40, may_wait=False)
    asking = [c for _, frame in world.streams.take_sent() for c in frame.commits if c.depth]
    assert asking
    assert not any(commit.is_unawaited for commit in asking)

    world.answer = perfect
    world.run(10, may_wait=False)
    world.streams.take_sent()
    world.run(40, may_wait=False)
    asking = [c for _, frame in world.streams.take_sent() for c in frame.commits if c.depth]
    assert asking
    assert all(commit.is_unawaited for commit in asking)


@pytest.mark.parametrize("how", ["lost", "departed"])
def test_silence_is_not_held_against_the_next_draft(world: World, how: str) -> None:
    session = world.open()
    world.run(20)
    world.answer = silent
    world.run(40, may_wait=False)
    world.streams.take_sent()
    if how == "lost":
        world.streams.lost = [session.session_id]
    else:
        world.streams.departed = ["r"]  # and is back
    world.run(10, may_wait=False)

    frames = [frame for _, frame in world.streams.take_sent()]
    assert any(frame.opens for frame in frames)
    asking = [commit for frame in frames for commit in frame.commits if commit.depth]
    assert asking
    assert all(commit.is_unawaited for commit in asking)


def test_answers_that_take_longer_than_a_step_is_prepared_are_found_out(world: World) -> None:
    """They were there before the next step could begin; then no wait for them seems possible."""
    world.turnaround_s = 0.005
    world.open()
    world.run(50)
    assert not world.buffer.waits[5:]
    world.latency_s = 0.012
    world.run(300)

    assert len(world.buffer.waits) > 100
    assert sum(world.num_used[-100:]) >= 90


def test_nobody_is_kept_from_working_ahead_for_a_step_that_may_not_wait(world: World) -> None:
    world.open()
    world.run(50)
    num_waits = len(world.buffer.waits)
    world.streams.take_sent()
    world.run(50, may_wait=False)
    asking = [c for _, frame in world.streams.take_sent() for c in frame.commits if c.depth]
    assert len(asking) > 20
    assert all(commit.is_unawaited for commit in asking)
    assert len(world.buffer.waits) == num_waits


def test_a_draft_that_answers_only_whom_a_step_waits_for_is_not_given_up(world: World) -> None:
    """It works ahead, but can't foresee a thing; at first it takes its time to answer."""
    world.latency_s = 0.5
    world.answer = lambda commit, tokens: None if commit.is_unawaited else perfect(commit, tokens)
    world.open()
    world.run(300)
    world.latency_s = 0.003
    world.run(600)

    assert sum(world.num_used[-100:]) >= 80


def test_a_slow_first_answer_is_no_verdict(world: World) -> None:
    world.latency_s = 0.2
    world.open()
    world.run(2)
    world.latency_s = 0.002
    world.run(60)

    assert sum(world.num_used[-20:]) >= 19


def test_a_step_that_could_not_wait_is_not_held_against_the_draft(world: World) -> None:
    for _ in range(8):
        world.open()
    world.run(10)
    world.step(may_wait=False)  # somebody's prompt is being read
    world.step()

    assert world.num_used[-3:] == [8, 0, 8]


def test_one_silent_session_does_not_hold_up_the_others(world: World) -> None:
    world.answer = lambda commit, tokens: (
        None if commit.session_id == 1 else perfect(commit, tokens)
    )
    for _ in range(4):
        world.open()
    world.run(100)

    assert world.num_used[-50:].count(3) >= 49
    long_waits = [wait for wait in world.buffer.waits if wait > world.latency_s + 1e-9]
    assert len(long_waits) <= 2


def test_one_silent_router_does_not_hold_up_the_other(world: World) -> None:
    world.streams.connected = {"r", "dead"}
    world.answer = lambda commit, tokens: None if commit.session_id > 2 else perfect(commit, tokens)
    world.open()
    world.open()
    for _ in range(20):
        dead = world.open("dead")
        world.run(5)
        world.close(dead)

    assert world.num_used[-50:].count(2) >= 49
    long_waits = [wait for wait in world.buffer.waits if wait > world.latency_s + 1e-9]
    assert len(long_waits) <= 4


def test_a_wait_is_not_worth_it_for_one_poor_draft_in_a_large_batch(world: World) -> None:
    world.open()
    world.latency_s = 0.015
    for _ in range(100):
        world.step(num_others=60)

    assert len(world.buffer.waits) < 15


def test_a_few_late_proposals_are_not_worth_the_time_of_many_requests(world: World) -> None:
    world.latency_s = 0.010
    world.answer = short
    world.open()
    world.run(10)
    assert len(world.buffer.waits) > 5

    world.answer = lambda commit, tokens: short(commit, tokens) if commit.session_id == 1 else None
    world.foresee = lambda i, tokens: right(i, tokens, MAX_DEPTH) if i > 1 else None
    for _ in range(40):
        world.open()
    world.run(3)
    num_waits = len(world.buffer.waits)
    world.step()

    assert world.num_used[-1] == 40
    assert len(world.buffer.waits) == num_waits


def test_a_proposal_is_waited_for_and_missed_once(world: World) -> None:
    session = world.open()
    world.run(3)
    world.answer = silent
    world.step()
    num_waits, num_misses = len(world.buffer.waits), world.speculation.stats().num_misses
    for _ in range(3):  # steps that came to nothing: no commit followed
        world.speculation.propose([session.session_id], 0, may_wait=True)

    assert len(world.buffer.waits) == num_waits + 1
    assert world.speculation.stats().num_misses == num_misses + 1


# Counting.


def test_steps_and_tokens_are_counted(world: World) -> None:
    world.open()
    world.open()
    world.run(10)
    stats = world.speculation.stats()

    num_added = sum(len(tokens) - len(PROMPT) for tokens in world.tokens.values())
    assert stats.num_steps == stats.step_time.count == 10
    assert stats.num_request_steps == 20
    assert stats.num_committed == num_added
    assert stats.num_open_sessions == 2
    counts = stats.sources["model"]
    assert counts.num_proposed == counts.num_accepted == num_added - 20
    assert sum(counts.proposed_per_position) == counts.num_proposed


@pytest.mark.parametrize(
    ("sources", "is_hit"),
    [(("model",), True), (("stop_gap", "ngram"), True), (("stop_gap",), False)],
)
def test_turnarounds_are_counted_where_a_draft_was_in_time(
    world: World, sources: Sequence[Source], is_hit: bool
) -> None:
    world.open()
    world.latency_s = 0.0
    world.run(2)
    world.speculation.begin_wait([], 0, may_wait=False)
    world.speculation.observe_turnaround(0.001, 1, sources)

    assert world.speculation.stats().turnaround_time.count == is_hit


@pytest.mark.parametrize(
    ("latency_s", "draft_time_us", "was_late"),
    [(0.002, 0, True), (-0.001, 0, False), (0.002, 900, False)],
)
def test_a_draft_is_told_that_what_it_sent_ahead_came_late(
    world: World, latency_s: float, draft_time_us: int, *, was_late: bool
) -> None:
    """An answer, whose draft time is not 0, could not have come before its commit."""

    def ahead(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
        return replace(perfect(commit, tokens), draft_time_us=draft_time_us)

    world.answer, world.latency_s = ahead, latency_s
    world.open()
    world.run(8)

    commits = [commit for _, frame in world.streams.sent for commit in frame.commits]
    assert not commits[0].was_late  # nothing had been proposed yet
    assert [commit.was_late for commit in commits[1:]] == [was_late] * 7

    world.answer = silent
    world.step()  # verifies what still came
    num_sent = len(world.streams.sent)
    world.run(3)
    commits = [commit for _, frame in world.streams.sent[num_sent:] for commit in frame.commits]
    assert all(commit.was_late for commit in commits)
    assert commits


def test_a_wait_is_no_overhead(world: World) -> None:
    planner = Planner()
    world.speculation = Speculation(world.buffer, world.streams, world.clock, planner)
    world.open()
    world.run(20)
    waited_s = world.buffer.waits[-1]
    assert waited_s > 0
    for _ in range(100):
        planner.observe_turnaround(0.001, 1, is_speculative=False)
        world.speculation.observe_turnaround(0.001 + waited_s, 1, ("model",))

    assert planner.overhead.extra_s == pytest.approx(0.0, abs=1e-4)
    assert world.speculation.stats().turnaround_time.count == 0


def test_positions_are_counted_as_far_as_they_were_accepted(world: World) -> None:
    session = world.open()
    world.speculation.observe_verification(session.session_id, "model", 3, 1)
    world.speculation.observe_verification(session.session_id, "model", 2, 2)
    world.speculation.observe_verification(session.session_id, "prompt_lookup", 1, 0)
    world.speculation.observe_verification(99, "prompt_lookup", 1, 0)  # of nobody who is open
    sources = world.speculation.stats().sources

    assert sources["model"].proposed_per_position == [2, 2, 1]
    assert sources["model"].accepted_per_position == [2, 1]
    assert sources["prompt_lookup"].num_proposed == 1


def test_whoever_looks_on_is_told_what_was_accepted(world: World) -> None:
    session = world.open()
    world.run(3)
    end = len(session.token_ids)
    world.speculation.observe_verification(session.session_id, "stop_gap", 5, 4)
    world.tokens[session.session_id] += [1, 2]  # the answer ends within these
    world.close(session)
    world.speculation.flush()
    commits = [commit for _, frame in world.streams.sent for commit in frame.commits]

    told = [accepted for commit in commits for accepted in commit.accepted]
    *before, last = told
    assert before
    assert {accepted.source for accepted in before} == {"model"}
    depths = [accepted.num_tokens for accepted in before]
    places = [commit.position for commit in commits if commit.accepted]
    assert [accepted.position for accepted in told] == places
    assert depths == [len(commit.token_ids) - 1 for commit in commits[:-1] if commit.accepted]
    assert last == Accepted(end, 2, "stop_gap")
    assert commits[-1].depth == 0


def test_nobody_hears_of_accepted_tokens_that_were_not_added(world: World) -> None:
    session = world.open()
    world.run(1)
    world.speculation.observe_verification(session.session_id, "stop_gap", 5, 4)
    world.close(session)
    num_before = len(world.streams.sent)
    world.speculation.flush()

    assert not any(frame.commits for _, frame in world.streams.sent[num_before:])


def test_steps_with_prefill_do_not_count_as_decode_time(world: World) -> None:
    load = StepLoad(1, 500, 500, 0, 500)
    world.speculation.observe_step(load, 1, 1, 0.5)

    stats = world.speculation.stats()
    assert (stats.num_steps, stats.step_time.count) == (1, 0)


def test_a_snapshot_does_not_change_later(world: World) -> None:
    world.open()
    world.run(5)
    stats = world.speculation.stats()
    steps, proposed = stats.num_steps, stats.sources["model"].num_proposed
    per_position = list(stats.sources["model"].proposed_per_position)
    world.run(5)

    assert (stats.num_steps, stats.step_time.count) == (steps, steps)
    assert stats.sources["model"].num_proposed == proposed
    assert stats.sources["model"].proposed_per_position == per_position


def test_snapshots_may_be_taken_from_another_thread(world: World) -> None:
    session = world.open()
    errors: list[Exception] = []
    stop = threading.Event()

    def snapshot() -> None:
        while not stop.is_set():
            try:
                world.speculation.stats()
            except RuntimeError as error:
                errors.append(error)

    thread = threading.Thread(target=snapshot)
    thread.start()
    for i in range(300):
        source = f"source-{i}"  # more than there are, so that a race has a chance
        world.speculation.observe_verification(session.session_id, source, 2, 1)  # type: ignore[arg-type]
    stop.set()
    thread.join()

    assert not errors


def test_a_departure_of_before_does_not_forget_who_opens_after() -> None:
    """Else nobody would tell the draft that the session has ended."""
    world = World()
    world.streams.departed.append("r")  # it broke and came back while the engine ran a step
    session = world.open()
    world.speculation.propose([], 1, may_wait=False)
    world.close(session)
    world.speculation.flush()
    closes = [session_id for _, frame in world.streams.sent for session_id in frame.closes]
    assert closes == [session.session_id]


def test_a_requests_sources_are_learnt_apart(world: World) -> None:
    session = world.open()
    for _ in range(20):
        world.speculation.observe_verification(session.session_id, "prompt_lookup", 5, 5)
        world.speculation.observe_verification(session.session_id, "model", 5, 0)
    world.step()

    assert session.acceptances["prompt_lookup"].rate(0.5) > 0.9
    assert session.acceptances["model"].rate(0.5) < 0.2


# Drafting ahead.


def ahead(world: World, session_id: int, *, hit: Callable[[int], bool]) -> None:
    """From now on the draft's proposals come while the step before them runs, where it can.

    That is where the step before them was to have one, too.
    """
    numbers = itertools.count()
    foreseen: set[int] = set()  # lengths

    def foresee(i: int, tokens: tuple[int, ...]) -> Proposal | None:
        if i != session_id or not world.sessions[i].wanted_depth or not hit(next(numbers)):
            return None
        foreseen.add(len(tokens))
        return right(i, tokens, 1)

    def answer(commit: Commit, tokens: tuple[int, ...]) -> Proposal | None:
        return None if len(tokens) in foreseen else short(commit, tokens)

    world.foresee, world.answer = foresee, answer


def test_hits_late_ones_and_misses_are_counted(world: World) -> None:
    session = world.open()
    session.max_depth = 1
    world.run(2)
    session.num_hits = session.num_late = session.num_absent = 0
    before = world.speculation.stats()
    ahead(world, 1, hit=lambda number: number % 2 == 0)
    world.run(20)
    world.answer = silent
    world.run(3)
    world.close(session)
    stats = world.speculation.stats()

    assert session.num_hits >= 9
    assert session.num_late >= 9
    assert session.num_absent >= 1
    assert stats.num_hits - before.num_hits == session.num_hits
    assert stats.num_late - before.num_late == session.num_late
    assert stats.num_absent - before.num_absent == session.num_absent


def test_a_hit_needs_no_wait_and_says_nothing_of_how_long_answers_take(world: World) -> None:
    world.latency_s = 0.015
    world.open()
    world.run(10)
    ahead(world, 1, hit=lambda number: number % 10 != 0)
    world.run(200)
    num_waits = len(world.buffer.waits)
    world.run(100)

    assert sum(world.num_used[-100:]) >= 90
    assert len(world.buffer.waits) - num_waits <= 10
    assert world.speculation._patience.answer_s(1.0, 4) == pytest.approx(0.015, rel=0.2)
    expected_s = world.speculation._patience.expected_wait_s(1.0, 4)
    assert expected_s < 0.2 * 0.015


def test_a_draft_too_slow_to_be_waited_for_is_used_where_it_is_ahead(world: World) -> None:
    world.latency_s = 0.5
    world.open()
    ahead(world, 1, hit=lambda number: number % 3 > 0)
    world.run(300)

    assert sum(world.num_used[-90:]) >= 55
    assert sum(world.buffer.waits) < 0.02 * 300 * STEP_S


def test_a_draft_that_begins_to_draft_ahead_is_noticed(world: World) -> None:
    world.latency_s = 0.5
    world.open()
    world.run(600)
    ahead(world, 1, hit=lambda number: number % 3 > 0)
    world.run(400)

    assert sum(world.num_used[-90:]) >= 55


def test_what_is_left_of_a_proposal_that_came_too_late_is_verified(world: World) -> None:
    world.latency_s = 0.030
    world.open()
    world.run(60)

    used = [depth for depth in world.num_used[20:] if depth]
    assert len(used) >= 15  # every other step: the one after it has nothing to wait for
    assert world.speculation.stats().num_late > 0


@pytest.mark.parametrize(("slowdown", "is_worth_it"), [(1.0, True), (1.1, True), (1.8, False)])
def test_a_draft_that_slows_the_target_down_more_than_it_brings_rests(
    world: World, slowdown: float, is_worth_it: bool
) -> None:
    """The draft is right in half of its tokens, so a step brings 1.5 of them."""
    session = world.open(max_depth=1)
    ahead(world, 1, hit=lambda _: True)
    for number in range(900):
        world.quality = number % 2
        world.step_s = STEP_S * (slowdown if session.wanted_depth else 1.0)
        world.step()

    used = sum(world.num_used[-300:])
    assert used > 270 if is_worth_it else used < 45


@pytest.mark.parametrize(("num_foreseen", "is_worth_it"), [(1, False), (2, False), (8, True)])
def test_what_a_draft_slows_down_is_weighed_against_what_comes_in_time(
    world: World, num_foreseen: int, is_worth_it: bool
) -> None:
    """Of twenty commits the draft has foreseen so many, and can't answer the others in time."""
    session = world.open(max_depth=1)
    world.latency_s = 0.5
    ahead(world, 1, hit=lambda number: number % 20 < num_foreseen)
    is_drafting = []
    for _ in range(1500):
        is_drafting.append(session.wanted_depth > 0)
        world.step_s = STEP_S * (1.2 if is_drafting[-1] else 1.0)
        world.step()

    num_drafting = sum(is_drafting[-600:])
    assert num_drafting > 550 if is_worth_it else num_drafting < 100


@pytest.mark.parametrize("num_sessions", [1, 32])
def test_a_step_without_its_proposals_is_no_reason_to_give_up(
    world: World, num_sessions: int
) -> None:
    sessions = [world.open(max_depth=1) for _ in range(num_sessions)]
    is_silent = False

    world.answer = silent
    world.foresee = lambda i, tokens: None if is_silent else right(i, tokens, 1)
    is_drafting = []
    for number in range(900):
        is_silent = number % 60 == 0
        is_drafting.append(any(session.wanted_depth for session in sessions))
        world.step_s = STEP_S * (1.2 if is_drafting[-1] else 1.0)
        world.step()

    assert sum(is_drafting[-600:]) > 550


def test_empty_answers_are_no_proposals(world: World) -> None:
    """Of 32 requests the draft has room for two; what they gain is less than all of them lose."""
    sessions = [world.open(max_depth=1) for _ in range(32)]

    world.answer = silent
    world.foresee = lambda i, tokens: right(i, tokens, 1 if i <= 2 else 0)
    is_drafting = []
    for _ in range(1500):
        is_drafting.append(any(session.wanted_depth for session in sessions))
        world.step_s = STEP_S * (1.2 if is_drafting[-1] else 1.0)
        world.step()

    assert sum(is_drafting[-600:]) < 100


def test_copies_do_not_pay_for_a_draft_that_is_late(world: World) -> None:
    """Eight requests copy from their own texts, so that none is worth a wait for the draft."""
    world.streams.policy = replace(world.streams.policy, has_stop_gap=True)
    world.token_at, world.answer = five, periodic
    world.model_quality = 0.4
    world.latency_s = 0.019
    sessions = [world.open() for _ in range(8)]
    is_drafting = []
    for _ in range(900):
        is_drafting.append(any(session.wanted_depth for session in sessions))
        world.step_s = STEP_S * (1.06 if is_drafting[-1] else 1.0)
        world.step()

    assert sum(is_drafting[-600:]) < 60
    assert sum(world.num_used[-600:]) > 8 * 590


def test_a_copy_continues_the_text_as_it_is(world: World) -> None:
    """Also after a step that verified nothing, so that what was found before it was not used."""
    world.streams.policy = replace(world.streams.policy, has_stop_gap=True)
    world.token_at, world.answer, world.latency_s = five, periodic, 0.019
    sessions = [world.open() for _ in range(3)]
    num_plain = 0
    for _ in range(300):
        lengths = {session.session_id: len(session.token_ids) for session in sessions}
        chosen = world.step()
        num_plain += not chosen
        assert all(proposal.position == lengths[i] for i, proposal in chosen.items())
    assert num_plain > 2


@pytest.fixture
def copying(world: World) -> World:
    """A world whose text repeats itself, in which targets may copy from it and nobody drafts."""
    world.streams.policy = replace(world.streams.policy, has_stop_gap=True)
    world.streams.connected.clear()
    world.token_at = five
    world.open()
    world.run(12)  # decodes the first periods
    return world


def five(position: int) -> int:
    """A text of five tokens that begins with the prompt's four, again and again."""
    return (position + 1) % 5


def periodic(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
    guess = tuple(five(len(tokens) + i) for i in range(commit.depth))
    return Proposal(commit.session_id, len(tokens), tokens[-1], guess, "model")


def sources(world: World) -> dict[str, int]:
    return {
        source: counts.num_proposed for source, counts in world.speculation.stats().sources.items()
    }


def test_where_no_draft_proposes_the_requests_own_text_does(copying: World) -> None:
    num_before = sources(copying).get("stop_gap", 0)
    (chosen,) = copying.step().values()

    assert chosen.source == "stop_gap"
    assert chosen.token_ids == tuple(map(five, range(chosen.position, chosen.position + 5)))
    assert chosen.distributions is None
    assert sources(copying) == {"stop_gap": num_before + 5}
    assert copying.speculation.stats().num_proposals_used == 0  # no draft's


@pytest.mark.parametrize("remembers", [False, True])
def test_where_a_look_up_finds_nothing_earlier_answers_may(world: World, remembers: bool) -> None:
    """Texts do not repeat themselves, but each answer goes as the one before did."""
    stop_gap = StopGap(memory=AnswerMemory(1000) if remembers else None)
    world.streams.policy = replace(world.streams.policy, has_stop_gap=True)
    world.speculation = Speculation(world.buffer, world.streams, world.clock, stop_gap=stop_gap)
    world.latency_s = 0.0
    world.answer = lambda commit, tokens: Proposal(
        commit.session_id, len(tokens), tokens[-1], (), "prompt_lookup"
    )
    for _ in range(3):
        session = world.open()
        world.run(40)
        world.close(session)

    assert (sources(world).get("stop_gap_shared", 0) > 40) == remembers


@pytest.mark.parametrize("is_shareable", [False, True])
def test_a_draft_is_told_whether_an_answer_may_be_shared(world: World, is_shareable: bool) -> None:
    session = Session(
        *(1, "r", [*PROMPT], len(PROMPT), 100, 5, SamplingSettings(1.0)),
        uses_distributions=True,
        is_shareable=is_shareable,
    )
    world.speculation.open(session)
    _, frame = world.streams.sent[-1]
    assert [opened.is_shareable for opened in frame.opens] == [is_shareable]


def test_requests_that_may_not_speculate_count_for_the_rule_by_their_rate() -> None:
    world = World()
    world.streams.policy = replace(world.streams.policy, depth_rule=QpsRule(capacity_qps=5.0))
    session = world.open()
    world.run(20)
    assert session.wanted_depth == MAX_DEPTH
    for _ in range(100):  # 5 a second, over the last 20
        world.speculation.observe_arrival()
    world.run(1)

    assert session.wanted_depth <= 1


@pytest.mark.parametrize(
    "policy",
    [
        SpeculationPolicy(max_depth=MAX_DEPTH),
        SpeculationPolicy(is_enabled=False, max_depth=MAX_DEPTH, has_stop_gap=True),
        SpeculationPolicy(max_depth=0, has_stop_gap=True),
        SpeculationPolicy(max_depth=MAX_DEPTH, depth_rule=FixedRule(), has_stop_gap=True),
    ],
    ids=["not asked for", "switched off", "depth 0", "a rule for comparison"],
)
def test_nothing_is_copied_where_that_is_not_wanted(
    copying: World, policy: SpeculationPolicy
) -> None:
    copying.streams.policy = policy
    copying.step()  # at its end a rule is taken over

    assert copying.step() == {}


def test_an_id_that_the_model_has_no_logits_for_is_not_copied(copying: World) -> None:
    copying.buffer.vocab_size = 4  # the text's fifth is a padding token, say

    assert copying.step() == {}


def test_a_draft_that_proposes_comes_before_a_copy(copying: World) -> None:
    copying.streams.connected.add("r")
    copying.answer, copying.latency_s = periodic, 0.0
    copying.step()
    copying.buffer.run_clock(copying.clock.now)  # the answer is here

    assert [proposal.source for proposal in copying.step().values()] == ["model"]


@pytest.mark.parametrize(("source", "copies"), [("prompt_lookup", []), ("model", ["stop_gap"])])
def test_a_copy_is_not_looked_for_where_a_draft_has_found_none(
    copying: World, source: Source, copies: list[str]
) -> None:
    """A model that proposes nothing may lack the memory; a look-up would have found the same."""
    copying.streams.connected.add("r")
    copying.latency_s = 0.0
    copying.answer = lambda commit, tokens: replace(
        periodic(commit, tokens), token_ids=(), source=source
    )
    copying.step()
    copying.buffer.run_clock(copying.clock.now)  # the answer is here

    assert [proposal.source for proposal in copying.step().values()] == copies


def test_no_step_waits_where_a_copy_is_as_good_but_for_want_of_one_it_does(copying: World) -> None:
    copying.streams.connected.add("r")
    copying.answer, copying.latency_s = periodic, 0.8 * MAX_WAIT_S
    copying.run(3)  # learns how long answers take
    copying.buffer.waits.clear()
    copying.run(4)
    assert copying.buffer.waits == []

    copying.streams.policy = replace(copying.streams.policy, has_stop_gap=False)
    copying.run(4)
    assert copying.buffer.waits


def wrong_ngrams(share: float) -> NgramModel:
    """A table whose guesses the target never says, as sure of each as this."""
    keys = context_keys(np.arange(100)[:, None])
    order = np.argsort(keys)
    followers, shares = ((np.arange(100) + 50) % 100)[order], np.full(100, share, np.float16)
    return NgramModel([NgramOrder(keys[order], np.arange(101, dtype=np.int32), followers, shares)])


@pytest.mark.parametrize(
    ("source", "temperature", "waits"),
    [("ngram", 0.0, False), ("model", 0.0, True), ("ngram", 0.7, True)],
    ids=["the same table", "a model", "drawn from it"],
)
def test_no_step_waits_for_what_the_target_knows_itself(
    world: World, source: Source, temperature: float, waits: bool
) -> None:
    """Its table has always been wrong, so that a wait would pay for whoever knows more."""
    world.streams.policy = replace(world.streams.policy, has_stop_gap=True)
    world.speculation = Speculation(
        world.buffer, world.streams, world.clock, stop_gap=StopGap(wrong_ngrams(0.9))
    )
    world.answer = lambda commit, tokens: replace(perfect(commit, tokens), source=source)
    session = world.open(temperature=temperature)
    session.source = source
    world.run(40)
    world.buffer.waits.clear()
    world.run(20)

    assert bool(world.buffer.waits) == waits


def answered_by(*names: Source) -> Answer:
    """Who answers commits that were not drafted ahead for, in turn; the last from then on."""
    left = list(names)

    def answer(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
        source = left.pop(0) if len(left) > 1 else left[0]
        return replace(perfect(commit, tokens), source=source, draft_time_us=100)

    return answer


def model_ahead(session_id: int, tokens: tuple[int, ...]) -> Proposal:
    return right(session_id, tokens, 1)


@pytest.fixture
def hybrid(world: World) -> World:
    """A model drafts ahead, n-grams answer at once, and the target has a table like theirs.

    It is so unsure that a wait would pay for whoever knows more.
    """
    world.streams.policy = replace(world.streams.policy, has_stop_gap=True)
    world.speculation = Speculation(
        world.buffer, world.streams, world.clock, stop_gap=StopGap(wrong_ngrams(0.1))
    )
    world.answer = answered_by("ngram")
    world.latency_s, world.turnaround_s = 0.001, 0.002
    return world


def behind(world: World, *names: Source) -> None:
    """The next commits are not drafted ahead for, and are answered by these."""
    world.foresee, world.answer = nothing, answered_by(*names)
    world.run(len(names))
    world.answer = silent
    world.step()  # takes the last


def drafted_ahead(world: World, num_steps: int = 1) -> None:
    """The next steps' proposals come from the model, before their commits."""
    world.foresee, world.answer = model_ahead, silent
    world.run(num_steps + 1)
    world.foresee = nothing


def is_held_back(world: World) -> bool:
    """Whether the step behind the next commit would be, for what was not drafted ahead."""
    world.answer = silent
    world.step()
    sessions = world.sessions.values()
    assert all(session.is_due for session in sessions)
    return any(session.is_awaited for session in sessions)


def test_a_model_that_drafts_ahead_is_not_waited_for_where_ngrams_answer(hybrid: World) -> None:
    session = hybrid.open(temperature=0.0)
    behind(hybrid, "ngram")
    drafted_ahead(hybrid)

    assert session.source == "model"
    assert not is_held_back(hybrid)


def test_a_model_that_drafts_ahead_too_late_is_no_reason_to_wait(hybrid: World) -> None:
    session = hybrid.open(temperature=0.0)
    behind(hybrid, "ngram")
    hybrid.answer = perfect
    hybrid.run(2)

    assert session.source == "model"
    assert not is_held_back(hybrid)


def test_a_new_request_takes_over_who_has_answered_others(hybrid: World) -> None:
    hybrid.open(temperature=0.0)
    behind(hybrid, "ngram")
    drafted_ahead(hybrid)
    session = hybrid.open(temperature=0.0)

    assert session.source == "model"
    assert not is_held_back(hybrid)


def test_a_copy_does_not_tell_who_answers_where_there_is_none(hybrid: World) -> None:
    session = hybrid.open(temperature=0.0)
    behind(hybrid, "ngram", "prompt_lookup")

    assert session.source == "prompt_lookup"
    assert not is_held_back(hybrid)


def test_a_model_that_answers_is_waited_for_again(hybrid: World) -> None:
    hybrid.open(temperature=0.0)
    behind(hybrid, "ngram", "model")
    drafted_ahead(hybrid)

    assert is_held_back(hybrid)


def test_an_answer_is_judged_by_those_that_were_not_drafted_ahead(
    hybrid: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = hybrid.open()  # sampled, so that its draft's n-grams say more than the target's
    behind(hybrid, "ngram")
    drafted_ahead(hybrid)
    assert session.source == "model"
    planner = hybrid.speculation._planner
    weighed: list[Sequence[Source]] = []

    def plan(offers: Sequence[Offer], num_plain: int, wait_s: float = 0.0) -> DepthPlan:
        weighed.append([offer.source for offer in offers])
        return Planner.plan(planner, offers, num_plain, wait_s)

    monkeypatch.setattr(planner, "plan", plan)
    is_held_back(hybrid)

    assert weighed[-1] == ["ngram"]


@pytest.mark.parametrize("num_requests", [1, 6], ids=["one", "short ones"])
def test_who_answered_long_ago_is_forgotten(hybrid: World, num_requests: int) -> None:
    """A draft whose n-grams were switched off, and that is not waited for, only drafts ahead."""
    session = hybrid.open(temperature=0.0)
    behind(hybrid, "ngram")
    drafted_ahead(hybrid, 10)
    assert not is_held_back(hybrid)
    for _ in range(num_requests):
        hybrid.close(session)
        session = hybrid.open(temperature=0.0)
        drafted_ahead(hybrid, 66 // num_requests)

    assert is_held_back(hybrid)
    assert hybrid.open(temperature=0.0).answer_source is None


@pytest.mark.parametrize("overhead_s", [0.0, 0.4])
def test_copies_that_save_less_than_they_take_are_rarely_looked_for(
    world: World, overhead_s: float
) -> None:
    planner = Planner()
    world.speculation = Speculation(world.buffer, world.streams, world.clock, planner)
    world.streams.policy = replace(world.streams.policy, has_stop_gap=True)
    world.streams.connected.clear()
    world.token_at = five
    world.open()
    for _ in range(400):
        planner.observe_turnaround(0.001, 1, is_speculative=False)
        planner.observe_turnaround(0.001 + overhead_s, 1, is_speculative=True)
        world.step()

    num_steps = sum(num > 0 for num in world.num_used[-200:])
    assert num_steps <= 10 if overhead_s else num_steps >= 190


def test_copies_that_are_never_accepted_become_short(copying: World) -> None:
    copying.quality = 0.0
    copying.run(60)
    num_before = sources(copying)["stop_gap"]
    copying.run(20)

    assert sources(copying)["stop_gap"] - num_before <= 20  # of a hundred


@pytest.mark.parametrize(
    ("is_off", "depths", "num_others", "is_alone"),
    [
        (True, (2,), 0, True),
        (True, (2, 1), 0, True),
        (True, (2, 0), 0, False),
        (True, (2,), 1, False),
        (False, (2,), 0, False),
    ],
)
def test_only_a_trial_for_all_tells_how_long_answers_take(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    depths: tuple[int, ...],
    num_others: int,
    *,
    is_off: bool,
    is_alone: bool,
) -> None:
    planner, patience = Planner(), Patience()
    told: list[bool] = []
    monkeypatch.setattr(patience, "give_a_chance", lambda _, *, is_alone: told.append(is_alone))
    monkeypatch.setattr(Planner, "is_probing", True)
    monkeypatch.setattr(planner, "wanted_depths", lambda *_args, **_kwargs: depths)
    world.speculation = Speculation(
        world.buffer, world.streams, world.clock, planner=planner, patience=patience
    )
    planner.is_off = is_off
    for _ in depths:
        world.open()
    world.step(num_others=num_others)
    assert told == [is_alone]
