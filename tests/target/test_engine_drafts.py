"""What the engine's own drafter brings is used where it pays, and it rests where it does not."""

import itertools
from collections import Counter

import numpy as np
import pytest

from specray.control.planner import Planner, Surroundings
from specray.control.roofline import StepLoad
from specray.target.engine_drafts import Drafter
from specray.target.session import Session
from specray.target.speculation import Speculation
from specray.types import (
    BatchSizeRule,
    FixedRule,
    Proposal,
    SamplingSettings,
    Source,
    SpeculationPolicy,
    TruncatedDistributions,
)
from tests.target.test_speculation import MAX_DEPTH, Buffer, Clock, Streams

PROMPT = (1, 2, 3, 4)
STEP_S = 0.05
TOKEN_S = 0.0005


class World:
    """An engine whose own drafter is right about a share of what it drafts."""

    def __init__(self, drafter: Drafter, *, has_drafts: bool = False) -> None:
        self.clock = Clock()
        self.streams = Streams()
        self.buffer = Buffer(self.clock)
        self.planner = Planner()
        self.speculation = Speculation(
            *(self.buffer, self.streams, self.clock, self.planner),
            drafter=drafter,
            has_drafts=has_drafts,
        )
        self.drafter = drafter
        self.draft_token_s = 0.001
        self.num_right = MAX_DEPTH  # of its tokens, each time
        self.token_s = TOKEN_S
        self.tokens: dict[int, list[int]] = {}
        self.sessions: dict[int, Session] = {}
        self.depths: list[int] = []  # drafted behind each step
        self.behind: set[int] = set()
        self.sources: Counter[Source] = Counter()  # verified
        self.seconds = 0.0
        self.num_committed = 0
        self._names = itertools.count(1)

    def open(
        self, *, max_tokens: int = 100_000, is_shareable: bool = True, temperature: float = 0.0
    ) -> Session:
        """A request whose prompt is read in a step of its own."""
        session_id = next(self._names)
        tokens = self.tokens[session_id] = list(PROMPT)
        session = self.sessions[session_id] = Session(
            *(session_id, "r", tokens, len(tokens), len(tokens) + max_tokens, 64),
            SamplingSettings(temperature),
            uses_distributions=True,
            is_shareable=is_shareable,
        )
        self.speculation.open(session)
        self._begin([*self.sessions])
        return session

    def _begin(self, ids: list[int]) -> int:
        depth = self.speculation.begin_step(ids, self.behind.intersection(ids))
        if depth == 0 and self.drafter.has_context:
            self.behind.update(ids)
        self.depths.append(depth)
        return depth

    def close(self, session: Session) -> None:
        del self.sessions[session.session_id], self.tokens[session.session_id]
        self.speculation.close(session.session_id)

    def step(self, num_others: int = 0) -> dict[int, Proposal]:
        """One decode step of all."""
        ids = list(self.sessions)
        self.speculation.expect(Surroundings())
        chosen = self.speculation.propose(ids, num_others, may_wait=True)
        depth = self._begin(ids)
        self.speculation.learn()
        self.sources.update(proposal.source for proposal in chosen.values())
        before = {i: len(self.tokens[i]) for i in ids}
        for i in ids:
            proposed = chosen[i].token_ids if i in chosen else ()
            num_accepted = min(self.num_right, len(proposed))
            if i in chosen:
                source = chosen[i].source
                self.speculation.observe_verification(i, source, len(proposed), num_accepted)
            self.tokens[i] += [*proposed[:num_accepted], len(self.tokens[i]) % 90]
        num_requests = len(ids) + num_others
        num_tokens = num_requests + sum(len(p.token_ids) for p in chosen.values())
        drafting_s = self.draft_token_s * depth
        step_s = STEP_S + self.token_s * num_tokens + drafting_s
        num_committed = sum(len(self.tokens[i]) - before[i] for i in ids)
        self.clock.now += step_s
        self.seconds += step_s
        self.num_committed += num_committed
        load = StepLoad(num_requests, num_tokens, 0)
        self.speculation.observe_step(load, len(ids), num_committed, step_s, drafting_s=drafting_s)
        self.speculation.commit(before, num_others)
        if depth > 0:
            tokens = [7, 8, 9, 10, 11, 12, 13, 14][:depth]
            self.speculation.note_drafted(dict.fromkeys(self.sessions, tokens))
        return chosen

    def run(self, num_steps: int) -> float:
        """Tokens per second and request."""
        self.seconds, self.num_committed = 0.0, 0
        for _ in range(num_steps):
            self.step()
        return self.num_committed / self.seconds / len(self.sessions)


PLAIN = 1 / (STEP_S + TOKEN_S)  # tokens per second of one request


@pytest.fixture
def world() -> World:
    return World(Drafter(MAX_DEPTH))


def test_what_it_drafts_is_verified(world: World) -> None:
    world.open()
    assert world.run(100) > 4.5 * PLAIN
    assert world.depths[-1] == MAX_DEPTH
    assert set(world.sources) == {"engine"}
    assert world.streams.sent == []  # there is nobody to tell


def test_it_rests_where_it_brings_nothing(world: World) -> None:
    world.open()
    world.num_right, world.draft_token_s = 0, 0.01
    world.run(100)
    assert world.run(4000) > 0.995 * PLAIN
    assert sum(world.depths[-4000:]) < 200


def test_it_drafts_no_deeper_than_pays(world: World) -> None:
    world.open()
    world.num_right = 1
    world.run(200)
    assert world.depths[-1] in (1, 2)


def test_a_request_whose_tokens_it_has_missed_gets_nothing(world: World) -> None:
    """Of the keys and values of those there is nothing, so that what it says is worthless."""
    old = world.open()
    world.num_right, world.draft_token_s = 0, 0.02
    while world.depths[-1] > 0:
        world.step()
    world.num_right, world.draft_token_s = MAX_DEPTH, 0.001
    world.streams.policy = SpeculationPolicy(max_depth=MAX_DEPTH, depth_rule=FixedRule(depth=4))
    world.step()  # the rule is followed from the next commit on
    world.step()
    new = world.open()
    chosen = [world.step() for _ in range(10)]
    assert all(old.session_id not in proposals for proposals in chosen)
    assert all(new.session_id in proposals for proposals in chosen[1:])
    world.close(new)
    world.step()
    assert world.depths[-1] == 0  # nobody is left who could use it


def test_it_comes_back_although_most_requests_began_without_it(world: World) -> None:
    """Each request lives for some steps; those that it has missed go in time."""
    world.draft_token_s, world.token_s = 0.012, 0.0001
    sessions = [world.open() for _ in range(8)]
    world.streams.policy = SpeculationPolicy(is_enabled=False, max_depth=MAX_DEPTH)
    world.run(50)
    world.streams.policy = SpeculationPolicy(max_depth=MAX_DEPTH)
    for step in range(4000):
        if step % 20 == 0:
            world.close(sessions.pop(0))
            sessions.append(world.open())
        world.step()
    world.sources.clear()
    for step in range(400):
        if step % 20 == 0:
            world.close(sessions.pop(0))
            sessions.append(world.open())
        world.step()
    assert world.sources["engine"] > 0.9 * 400 * 8


def test_it_does_not_read_prompts_of_which_nothing_could_be_verified(world: World) -> None:
    for max_tokens in (1, 2):
        world.close(world.open(max_tokens=max_tokens))
        assert world.depths[-1] == 0
    world.open(max_tokens=3)
    assert world.depths[-1] == MAX_DEPTH


def test_a_trial_is_not_judged_by_the_one_token_that_it_drafts() -> None:
    """A copy of many gets further than that, and yet not as far as it would."""
    world = World(Drafter(MAX_DEPTH), has_drafts=True)
    world.draft_token_s = 0.004
    session = world.open()
    other = Other(world, session)
    world.run(200)
    world.streams.policy = SpeculationPolicy(is_enabled=False, max_depth=MAX_DEPTH)
    world.run(10)
    world.streams.policy = SpeculationPolicy(max_depth=MAX_DEPTH)
    world.close(session)
    for _ in range(100):
        session = world.open()
        other = Other(world, session)
        for _ in range(50):
            other.offer(2, 0.9)
            world.step()
        world.close(session)
    assert world.depths[-1] == MAX_DEPTH


def test_what_keeps_no_context_can_take_up_any_request() -> None:
    world = World(Drafter(MAX_DEPTH, has_context=False))
    old = world.open()
    world.streams.policy = SpeculationPolicy(is_enabled=False, max_depth=MAX_DEPTH)
    for _ in range(20):
        assert not world.step()
    assert world.depths[-1] == 0
    world.streams.policy = SpeculationPolicy(
        max_depth=MAX_DEPTH, depth_rule=FixedRule(depth=MAX_DEPTH)
    )
    for _ in range(3):
        world.step()
    assert old.session_id in world.step()


def test_it_does_not_run_while_speculation_is_off(world: World) -> None:
    world.open()
    world.run(20)
    world.streams.policy = SpeculationPolicy(is_enabled=False, max_depth=MAX_DEPTH)
    world.step()
    for _ in range(20):
        assert not world.step()
        assert world.depths[-1] == 0


def test_it_does_not_run_for_requests_that_may_not_speculate(world: World) -> None:
    for _ in range(10):
        world.step(num_others=3)
        assert world.depths[-1] == 0
    world.open()
    assert world.depths[-1] == MAX_DEPTH  # with the prompt it must begin


def test_copies_of_answers_are_no_business_of_a_request_with_a_seed() -> None:
    """Both may have been drawn by the same random numbers."""
    world = World(Drafter(MAX_DEPTH, is_shared=True))
    seeded, other = world.open(is_shareable=False), world.open()
    chosen = [world.step() for _ in range(20)]
    assert all(seeded.session_id not in proposals for proposals in chosen)
    assert any(other.session_id in proposals for proposals in chosen)


def test_a_rule_by_batch_size_holds_for_it_too(world: World) -> None:
    world.streams.policy = SpeculationPolicy(
        max_depth=MAX_DEPTH, depth_rule=BatchSizeRule(table=((1, 1, 3), (2, 8, 1)))
    )
    first = world.open()
    world.run(5)
    assert world.depths[-1] == 3
    assert len(world.step()[first.session_id].token_ids) == 3
    world.open()
    world.run(5)
    assert world.depths[-1] == 1


def test_a_fixed_number_is_drafted_and_cut() -> None:
    world = World(Drafter(MAX_DEPTH, is_fixed=True))
    session = world.open()
    world.num_right, world.token_s = 1, 0.01
    world.run(100)
    assert set(world.depths) <= {0, MAX_DEPTH}
    proposals = [world.step() for _ in range(10)]
    assert any(len(p[session.session_id].token_ids) < MAX_DEPTH for p in proposals if p)


def test_what_extends_something_else_is_not_verified(world: World) -> None:
    session = world.open()
    world.run(10)
    world.tokens[session.session_id].append(5)  # a step that it did not see
    assert not world.speculation.propose([session.session_id], 0, may_wait=False)


def test_nothing_is_verified_beyond_the_end_of_an_answer(world: World) -> None:
    session = world.open(max_tokens=40)
    while session.room() > 0:
        proposals = world.step()
        drafted = proposals[session.session_id].token_ids if proposals else ()
        assert len(world.tokens[session.session_id]) <= session.max_length
        assert len(drafted) <= MAX_DEPTH
    assert not world.step()


def test_those_that_it_can_not_draft_for_do_not_count_in_its_favour() -> None:
    """It takes its time for all of a batch."""
    world = World(Drafter(MAX_DEPTH))
    olds = [world.open() for _ in range(31)]
    world.behind.update(old.session_id for old in olds)
    world.draft_token_s = 0.005
    world.open()
    world.run(500)
    assert world.run(1000) > 0.98 / (STEP_S + 32 * TOKEN_S)


def test_nothing_is_verified_beyond_the_engines_room() -> None:
    """More than vLLM's `num_speculative_tokens` ends the engine."""
    world = World(Drafter(2), has_drafts=True)
    world.speculation = Speculation(
        world.buffer, world.streams, world.clock, drafter=Drafter(2), max_depth=2
    )
    session = world.open()
    other = Other(world, session)
    world.num_right = 1
    for _ in range(50):
        other.offer(MAX_DEPTH, 0.98)
        chosen = world.step()
        assert all(len(proposal.token_ids) <= 2 for proposal in chosen.values())


def test_what_seems_worse_is_tried_now_and_then() -> None:
    """Else a draft that is better than the engine's own would never be found out."""
    world = World(Drafter(2), has_drafts=True)
    session = world.open()
    other = Other(world, session)
    world.run(50)
    for _ in range(200):
        other.offer(1, 0.98)
        world.step()
    assert 4 <= world.sources["prompt_lookup"] <= 12
    for _ in range(200):
        other.offer(MAX_DEPTH, 0.02)  # it says so, but is right
        world.step()
    assert world.sources["prompt_lookup"] > 100


def test_a_step_is_as_long_as_it_is_without_drafting(world: World) -> None:
    world.open()
    world.draft_token_s = 0.004
    world.run(200)
    assert world.depths[-1] == MAX_DEPTH
    step_s = world.planner.step_time.step_s(StepLoad(1, 1 + MAX_DEPTH, 0))
    assert step_s == pytest.approx(STEP_S + (1 + MAX_DEPTH) * TOKEN_S, rel=0.03)


def test_a_trial_verifies_what_is_not_believed(world: World) -> None:
    def serve(num_requests: int) -> None:
        for _ in range(num_requests):
            session = world.open()
            world.run(100)
            world.close(session)

    world.num_right, world.token_s = 0, 0.015
    world.streams.policy = SpeculationPolicy(max_depth=1, depth_rule=FixedRule(depth=1))
    serve(3)
    world.streams.policy = SpeculationPolicy(max_depth=MAX_DEPTH)
    serve(1)
    assert world.depths[-1] == 0
    world.num_right = MAX_DEPTH
    serve(60)
    assert world.depths[-1] > 0


def test_no_step_waits_for_what_the_engine_drafts_as_well() -> None:
    world = World(Drafter(MAX_DEPTH), has_drafts=True)
    session = world.open()
    for _ in range(300):
        num_sent = len(world.streams.sent)
        world.step()
        tokens = world.tokens[session.session_id]
        for commit in (c for _, frame in world.streams.sent[num_sent:] for c in frame.commits):
            if commit.depth > 0:
                drafted = (20,) * commit.depth
                proposal = Proposal(session.session_id, len(tokens), tokens[-1], drafted, "model")
                world.buffer.arrive(world.clock.now + 0.01, proposal)
    assert len(world.buffer.waits) < 60


@pytest.mark.parametrize("first", [0.5, 0.98])
def test_which_is_verified_does_not_depend_on_what_was_drawn(first: float) -> None:
    """Its later distributions follow from its first token, on which the choice decides."""
    sources = set()
    for later in (0.1, 0.98):
        world = World(Drafter(2), has_drafts=True)
        session = world.open(temperature=1.0)
        world.num_right = 1
        world.run(100)
        session.wanted_depth = MAX_DEPTH
        tokens = world.tokens[session.session_id]
        largest = np.array([first, *[later] * (MAX_DEPTH - 1)], np.float32)
        others = np.repeat((1 - largest[:, None]) / 9, 9, axis=1)
        q = TruncatedDistributions(
            np.tile(np.arange(20, 30, dtype=np.int32), (MAX_DEPTH, 1)),
            np.concatenate([largest[:, None], others], axis=1),
        )
        proposal = Proposal(
            *(session.session_id, len(tokens), tokens[-1], (20,) * MAX_DEPTH, "model"),
            distributions=q,
        )
        world.buffer.offer(proposal, "r")
        (chosen,) = world.step().values()
        sources.add(chosen.source)
    assert len(sources) == 1


def test_it_rests_beside_a_request_that_forbids_drafts(world: World) -> None:
    session = world.open()
    world.run(20)
    for _ in range(400):
        world.depths.append(world.speculation.begin_step([session.session_id], ()))
        before = {session.session_id: len(world.tokens[session.session_id])}
        world.tokens[session.session_id].append(1)
        load = StepLoad(2, 2, 0)
        world.speculation.observe_step(load, 2, 2, STEP_S, drafting_s=0.005)
        world.speculation.commit(before, 1, may_draft=False)
    assert sum(depth > 0 for depth in world.depths[-100:]) < 40


class Other:
    """A draft outside, whose proposals are there before each step."""

    def __init__(self, world: World, session: Session) -> None:
        self._world, self._session = world, session

    def offer(self, num_tokens: int, confidence: float) -> None:
        tokens = self._world.tokens[self._session.session_id]
        proposal = Proposal(
            self._session.session_id,
            len(tokens),
            tokens[-1],
            (20,) * num_tokens,
            "prompt_lookup",
            confidences=(confidence,) * num_tokens,
        )
        self._world.buffer.offer(proposal, "r")


@pytest.mark.parametrize(("confidence", "source"), [(0.02, "engine"), (0.98, "prompt_lookup")])
def test_what_is_expected_to_get_further_is_verified(confidence: float, source: Source) -> None:
    world = World(Drafter(2), has_drafts=True)
    session = world.open()
    other = Other(world, session)
    world.num_right = 1
    world.run(100)
    other.offer(MAX_DEPTH, confidence)
    (proposal,) = world.step().values()
    assert proposal.source == source
