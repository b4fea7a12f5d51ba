"""What the target guesses behind a draft's proposal that is shorter than it may verify."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from specray.types import (
    Accepted,
    Commit,
    DepthRule,
    FixedRule,
    GoodputRule,
    Proposal,
    Source,
    TruncatedDistributions,
)
from tests.target.test_speculation import MAX_DEPTH, World, five

NUM_DRAFTED = 2
WRONG = 99


@pytest.fixture
def world() -> World:
    """One whose text repeats itself, with a model that gets two tokens far."""
    world = World()
    world.streams.policy = replace(world.streams.policy, has_stop_gap=True)
    world.token_at, world.answer, world.latency_s = five, drafted("model"), 0.0
    return world


def drafted(source: Source, num_tokens: int = NUM_DRAFTED) -> Callable[..., Proposal]:
    def answer(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
        guess = tuple(five(len(tokens) + i) for i in range(num_tokens))
        return Proposal(commit.session_id, len(tokens), tokens[-1], guess, source)

    return answer


def step(world: World) -> Proposal:
    """The one proposal that a step verifies of those that are here when it begins."""
    world.buffer.run_clock(world.clock.now)
    (proposal,) = world.step().values()
    return proposal


def test_a_short_proposal_goes_on_with_what_the_target_guesses(world: World) -> None:
    session = world.open()
    world.run(12)
    length = len(session.token_ids)
    proposal = step(world)
    assert proposal.source == "model"
    assert proposal.token_ids == tuple(five(length + i) for i in range(MAX_DEPTH))


def test_each_source_answers_for_its_own_tokens(world: World) -> None:
    session = world.open()
    world.run(40)
    before = world.speculation.stats().sources
    position = len(session.token_ids)
    world.streams.take_sent()
    assert len(step(world).token_ids) == MAX_DEPTH
    after = world.speculation.stats().sources
    model, copy = after["model"], after["stop_gap"]

    assert model.num_proposed - before["model"].num_proposed == NUM_DRAFTED
    assert copy.num_proposed - before["stop_gap"].num_proposed == MAX_DEPTH - NUM_DRAFTED
    assert model.proposed_per_position[0] - before["model"].proposed_per_position[0] == 1
    assert copy.proposed_per_position[0] - before["stop_gap"].proposed_per_position[0] == 1
    (commit,) = world.streams.take_frame().commits
    assert commit.accepted == (
        Accepted(position, NUM_DRAFTED, "model"),
        Accepted(position + NUM_DRAFTED, MAX_DEPTH - NUM_DRAFTED, "stop_gap"),
    )


def test_a_tail_is_judged_only_where_a_step_gets_to_it(world: World) -> None:
    """Else a copy behind a bad model would seem as bad."""
    session = world.open()
    world.run(40)
    rate = session.acceptances["stop_gap"].rate(0.5)
    num_before = world.speculation.stats().sources["stop_gap"].num_proposed
    world.quality = 0.0
    for _ in range(3):
        assert len(step(world).token_ids) > NUM_DRAFTED
    world.speculation.learn()
    assert session.acceptances["stop_gap"].rate(0.5) >= rate
    assert world.speculation.stats().sources["stop_gap"].num_proposed == num_before
    assert session.acceptances["model"].rate(0.5) < 0.9


def test_a_tail_that_is_no_good_is_left_out(world: World) -> None:
    """Here no step accepts more than the model's tokens."""
    world.open()
    world.token_s = 0.2 * world.step_s  # so that each token costs
    world._verify = accepting(world, NUM_DRAFTED)  # type: ignore[method-assign]
    depths = []
    for _ in range(80):
        world.buffer.run_clock(world.clock.now)
        depths += [len(proposal.token_ids) for proposal in world.step().values()]
    assert max(depths) > NUM_DRAFTED
    assert depths[-20:] == [NUM_DRAFTED] * 20


def accepting(world: World, num: int) -> Callable[[int, Proposal | None], None]:
    """Verifications that accept so many tokens, whatever stands behind them."""

    def verify(session_id: int, proposal: Proposal | None) -> None:
        token_ids = proposal.token_ids if proposal is not None else ()
        num_accepted = min(num, len(token_ids))
        if proposal is not None:
            world.speculation.observe_verification(
                session_id, proposal.source, len(token_ids), num_accepted
            )
        position = len(world.tokens[session_id]) + num_accepted
        world.tokens[session_id] += [*token_ids[:num_accepted], world.token_at(position)]

    return verify


def test_tokens_of_a_tail_count_as_certain_among_drawn_ones(world: World) -> None:
    def drawn(commit: Commit, tokens: tuple[int, ...]) -> Proposal:
        proposal = drafted("model")(commit, tokens)
        ids = np.array([[token_id, WRONG, 0] for token_id in proposal.token_ids], np.int32)
        q = np.tile(np.array([0.75, 0.25, 0.0], np.float32), (NUM_DRAFTED, 1))
        return replace(proposal, distributions=TruncatedDistributions(ids, q))

    world.answer = drawn
    world.open()
    world.run(12)
    proposal = step(world)
    assert len(proposal.token_ids) == MAX_DEPTH
    q = proposal.distributions
    assert q is not None
    assert q.token_ids.shape == q.probabilities.shape == (MAX_DEPTH, 3)
    assert tuple(q.token_ids[:, 0]) == proposal.token_ids
    assert q.probabilities[:NUM_DRAFTED, :2].tolist() == [[0.75, 0.25]] * NUM_DRAFTED
    assert q.probabilities[NUM_DRAFTED:].tolist() == [[1.0, 0.0, 0.0]] * (MAX_DEPTH - NUM_DRAFTED)


@pytest.mark.parametrize(
    ("answer", "has_stop_gap", "rule"),
    [
        (drafted("model"), False, GoodputRule()),
        (drafted("model"), True, FixedRule(4)),
        (drafted("prompt_lookup"), True, GoodputRule()),
        (
            lambda *told: replace(drafted("model")(*told), covers_outcomes=True),
            True,
            GoodputRule(),
        ),
    ],
    ids=["not asked for", "a rule for comparison", "as good a look-up", "outcomes are covered"],
)
def test_nothing_is_guessed_behind_a_proposal_where_that_is_not_wanted(
    world: World, answer: Callable[..., Proposal], has_stop_gap: bool, rule: DepthRule
) -> None:
    world.streams.policy = replace(world.streams.policy, has_stop_gap=has_stop_gap, depth_rule=rule)
    world.answer = answer
    world.open()
    world.run(12)
    assert len(step(world).token_ids) == NUM_DRAFTED


def test_a_tail_leaves_room_for_the_last_token(world: World) -> None:
    session = world.open()
    world.run(12)
    session.max_length = len(session.token_ids) + NUM_DRAFTED + 2
    assert len(step(world).token_ids) == NUM_DRAFTED + 1


def test_an_id_that_the_model_has_no_logits_for_ends_in_no_tail(world: World) -> None:
    world.open()
    world.run(15)
    world.buffer.run_clock(world.clock.now)
    world.buffer.vocab_size = 3  # the text's fourth and fifth are padding tokens, say
    (proposal,) = world.step().values()
    assert len(proposal.token_ids) == NUM_DRAFTED
