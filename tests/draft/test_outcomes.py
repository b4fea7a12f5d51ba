"""Predicted outcomes of verifications against those of commits whose chances are known."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.draft.outcomes import InFlight, OutcomeModel
from specray.types import SamplingSettings, TruncatedDistributions

GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=1.0)
A, B, C, ELSEWHERE = 3, 7, 11, 99  # tokens; the last is never among the candidates
SURE, UNSURE = (0.95, 0.04, 0.01), (0.55, 0.3, 0.15)  # of A, B and C
NUM_COMMITS = 3000  # so many that what is believed from the start counts for nothing
TOLERANCE = 0.06  # the latest thousand or so count

Chances = dict[int, float]  # by token; what is lacking to 1 goes elsewhere


def flight(*rows: Sequence[float], has_bonus: bool = True) -> InFlight:
    """A is proposed in each place, of which a row says what it was drawn from."""
    ids = np.tile(np.array([A, B, C], np.int32), (len(rows), 1))
    q = np.array(rows, np.float32).reshape(len(rows), 3)
    num_proposed = len(rows) - has_bonus
    return InFlight((A,) * num_proposed, TruncatedDistributions(ids, q), was_ahead=False)


def predicted(
    model: OutcomeModel,
    one: InFlight,
    sampling: SamplingSettings = SAMPLED,
    verified_rate: float = 1.0,
) -> dict[tuple[int, int], float]:
    """By accepted tokens and the token added, those that are held for possible."""
    rows = model.probabilities(one, sampling, verified_rate)
    ids = one.candidates.token_ids
    return {
        (k, int(ids[k, i])): float(p) for k, row in enumerate(rows) for i, p in enumerate(row) if p
    }


def drawn(chance: random.Random, chances: Chances) -> int:
    left = chance.random()
    for token_id, share in chances.items():
        left -= share
        if left < 0:
            return token_id
    return ELSEWHERE


def commit(chance: random.Random, one: InFlight, target: Callable[[int], Chances]) -> list[int]:
    """What a target adds that says `target(place)` there."""
    token_ids = []
    for place in range(len(one.token_ids) + 1):
        token_ids.append(drawn(chance, target(place)))
        if token_ids[place:] != list(one.token_ids[place : place + 1]):
            break
    return token_ids


def learn(
    model: OutcomeModel,
    one: InFlight,
    chances: Chances,
    sampling: SamplingSettings = SAMPLED,
    num: int = NUM_COMMITS,
) -> Counter[tuple[int, int]]:
    """Commits of a target that says the same in each place; how often each outcome came."""
    chance, outcomes = random.Random(0), Counter[tuple[int, int]]()
    for _ in range(num):
        token_ids = commit(chance, one, lambda _: chances)
        model.observe(one, token_ids, sampling)
        outcomes[len(token_ids) - 1, token_ids[-1]] += 1
    return outcomes


# Nothing is known yet.


def test_a_token_is_as_likely_to_survive_as_not_before_anything_is_known() -> None:
    assert OutcomeModel().survival_rate(SAMPLED) == 0.5
    assert OutcomeModel().survival_rate(GREEDY) == 0.5


def test_surer_tokens_are_believed_more_from_the_start() -> None:
    rates = [
        OutcomeModel().reach(flight((p, 1 - p, 0.0), has_bonus=False), SAMPLED, 1.0)
        for p in (0.05, 0.25, 0.5, 0.75, 0.95)
    ]
    assert rates == sorted(set(rates))
    assert 0.1 < rates[0] < rates[-1] < 0.9


def test_likelier_candidates_are_likelier_outcomes_from_the_start() -> None:
    outcomes = predicted(OutcomeModel(), flight(UNSURE, UNSURE))
    assert outcomes[0, B] > outcomes[0, C] > 0
    assert outcomes[1, A] > outcomes[1, B] > outcomes[1, C] > 0


def test_what_is_proposed_is_no_outcome() -> None:
    assert set(predicted(OutcomeModel(), flight(UNSURE, UNSURE, UNSURE))) == {
        *((0, B), (0, C)),
        *((1, B), (1, C)),
        *((2, A), (2, B), (2, C)),
    }


def test_what_has_no_probability_is_no_outcome() -> None:
    outcomes = predicted(OutcomeModel(), flight((0.8, 0.2, 0.0), (0.0, 1.0, 0.0)))
    assert set(outcomes) == {(0, B), (1, B)}


def test_without_a_proposal_all_that_follows_is_an_outcome() -> None:
    """No verification is needed for that, and so it does not matter how often there is one."""
    nothing, model = flight(UNSURE), OutcomeModel()
    assert set(predicted(model, nothing)) == {(0, A), (0, B), (0, C)}
    assert predicted(model, nothing, verified_rate=0.1) == predicted(model, nothing)
    assert model.reach(nothing, SAMPLED, 0.1) == 1.0


def test_without_candidates_there_are_no_outcomes() -> None:
    lacking = InFlight((A, B), flight(UNSURE).candidates.prefix(0), was_ahead=False)
    assert not lacking.has_bonus
    assert predicted(OutcomeModel(), lacking) == {}
    OutcomeModel().observe(lacking, (A, C), SAMPLED)


def test_what_may_not_be_verified_is_replaced_at_its_first_token() -> None:
    one = flight(UNSURE, UNSURE, SURE)
    always, seldom = (predicted(OutcomeModel(), one, verified_rate=rate) for rate in (1.0, 0.25))
    for (num_accepted, added), probability in always.items():
        share = 0.25 if num_accepted else 1.0
        assert seldom[num_accepted, added] == pytest.approx(share * probability)
    reaches = [OutcomeModel().reach(one, SAMPLED, rate) for rate in (1.0, 0.25)]
    assert reaches[1] == pytest.approx(0.25 * reaches[0])


# What commits teach.


@pytest.mark.parametrize("q", [SURE, UNSURE], ids=["sure", "unsure"])
@pytest.mark.parametrize(
    "chances",
    [{A: 0.3, B: 0.6, C: 0.05}, {A: 0.9, C: 0.1}, {B: 0.2}],
    ids=["less than believed", "more than believed", "never"],
)
def test_predictions_approach_what_happens(q: Sequence[float], chances: Chances) -> None:
    model, one = OutcomeModel(), flight(q, q, q)
    outcomes = learn(model, one, chances)
    expected = {
        (k, added): chances.get(A, 0.0) ** k * chances.get(added, 0.0)
        for k, added in [(0, B), (0, C), (1, B), (1, C), (2, A), (2, B), (2, C)]
    }
    got = predicted(model, one)
    for outcome, probability in expected.items():
        assert got[outcome] == pytest.approx(probability, abs=TOLERANCE)
        assert got[outcome] == pytest.approx(outcomes[outcome] / NUM_COMMITS, abs=TOLERANCE)
    assert model.survival_rate(SAMPLED) == pytest.approx(chances.get(A, 0.0), abs=TOLERANCE)
    reach = model.reach(one, SAMPLED, 1.0)
    assert reach == pytest.approx(chances.get(A, 0.0) ** 2, abs=TOLERANCE)


def test_what_is_added_after_all_was_accepted_is_learnt_apart_from_corrections() -> None:
    model, one = OutcomeModel(), flight(UNSURE, UNSURE)
    places = [{A: 0.5, B: 0.5}, {C: 1.0}]
    chance = random.Random(1)
    for _ in range(NUM_COMMITS):
        model.observe(one, commit(chance, one, places.__getitem__), SAMPLED)
    got = predicted(model, one)
    assert got[0, B] == pytest.approx(0.5, abs=TOLERANCE)
    assert got[0, C] == pytest.approx(0.0, abs=TOLERANCE)
    assert got[1, C] == pytest.approx(0.5, abs=TOLERANCE)
    assert got[1, B] == pytest.approx(0.0, abs=TOLERANCE)


def test_sure_and_unsure_tokens_are_learnt_apart() -> None:
    """In whatever place they stand."""
    model, one = OutcomeModel(), flight(SURE, UNSURE, has_bonus=False)
    places = [{A: 0.9, B: 0.1}, {A: 0.2, B: 0.8}]
    chance = random.Random(2)
    for _ in range(NUM_COMMITS):
        token_ids = commit(chance, one, [*places, {}].__getitem__)
        model.observe(one, token_ids, SAMPLED)
    for q, rate in ((SURE, 0.9), (UNSURE, 0.2)):
        reach = model.reach(flight(q, has_bonus=False), SAMPLED, 1.0)
        assert reach == pytest.approx(rate, abs=TOLERANCE)
    # Of 10 tokens that are tried 9 have another tried behind them.
    rate = (0.9 + 0.9 * 0.2) / 1.9
    assert model.survival_rate(SAMPLED) == pytest.approx(rate, abs=TOLERANCE)


def test_a_draft_that_has_changed_is_soon_known() -> None:
    model, one = OutcomeModel(), flight(UNSURE, has_bonus=False)
    learn(model, one, {A: 0.95}, num=4 * NUM_COMMITS)
    learn(model, one, {A: 0.1}, num=2 * NUM_COMMITS)
    assert model.reach(one, SAMPLED, 1.0) == pytest.approx(0.1, abs=TOLERANCE)


def test_what_is_rare_is_not_judged_by_a_single_time() -> None:
    """However much has been learnt of other tokens since the draft started."""
    model, one = OutcomeModel(), flight(UNSURE, has_bonus=False)
    learn(model, one, {A: 0.5}, num=10_000)
    sure = flight(SURE, has_bonus=False)
    before = model.reach(sure, SAMPLED, 1.0)
    learn(model, sure, {B: 1.0}, num=1)
    assert model.reach(sure, SAMPLED, 1.0) == pytest.approx(before, abs=0.2)


def test_what_lies_behind_a_rejected_token_says_nothing() -> None:
    """The first token is always replaced, so that nothing is known of the surer second one."""
    model, one = OutcomeModel(), flight(UNSURE, SURE, has_bonus=False)
    learn(model, one, {B: 1.0}, num=500)
    second = flight(SURE, has_bonus=False)
    known = OutcomeModel().reach(second, SAMPLED, 1.0)
    assert model.reach(second, SAMPLED, 1.0) == pytest.approx(known)


def test_what_is_added_where_nothing_is_known_says_nothing() -> None:
    """A commit goes on behind what the draft has computed."""
    model, one = OutcomeModel(), flight(UNSURE, has_bonus=False)
    longer = InFlight((A, A), one.candidates, was_ahead=False)
    for _ in range(500):
        model.observe(longer, (A, A, C), SAMPLED)
    bonus = flight(UNSURE)
    assert predicted(model, bonus) == predicted(OutcomeModel(), bonus)
    assert model.survival_rate(SAMPLED) > 0.9


# What is learnt of some says nothing of others.


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        (SAMPLED, GREEDY, False),
        (SamplingSettings(temperature=0.05), GREEDY, False),
        (SamplingSettings(temperature=0.7), SAMPLED, False),
        (SamplingSettings(temperature=0.7), SamplingSettings(temperature=0.75), True),
        (SAMPLED, SamplingSettings(temperature=1.0, top_p=0.9), True),
        (SamplingSettings(temperature=2.0), SamplingSettings(temperature=50.0), True),
        (SamplingSettings(temperature=1.7), SamplingSettings(temperature=2.0), False),
    ],
)
def test_temperatures_learn_apart(
    one: SamplingSettings,
    other: SamplingSettings,
    are_alike: bool,
) -> None:
    model, out = OutcomeModel(), flight(UNSURE, UNSURE)
    learn(model, out, {A: 0.95, B: 0.05}, one, num=500)
    assert model.survival_rate(one) > 0.9
    for sampling in (one, other):
        is_taught = are_alike or sampling is one
        rate, reach = model.survival_rate(sampling), model.reach(out, sampling, 1.0)
        assert (rate > 0.9) == is_taught
        assert (rate == 0.5) != is_taught
        assert (reach == OutcomeModel().reach(out, sampling, 1.0)) != is_taught
        outcomes = predicted(model, out, sampling)
        assert (outcomes == predicted(OutcomeModel(), out, sampling)) != is_taught


# Whatever was learnt.


@st.composite
def flights(draw: st.DrawFn) -> InFlight:
    num_proposed = draw(st.integers(0, 4))
    num_rows = num_proposed + draw(st.integers(0, 1))
    width = draw(st.integers(1, 8))
    weights = st.lists(st.floats(0, 1) | st.just(1.0), min_size=width, max_size=width)
    q = np.array([draw(weights) for _ in range(num_rows)]).reshape(num_rows, width)
    q[:, 0] += 1e-3  # a row has something to draw
    q /= q.sum(axis=1, keepdims=True)
    ids = np.tile(np.arange(width, dtype=np.int32), (num_rows, 1))
    proposed = tuple(draw(st.integers(0, width - 1)) for _ in range(num_proposed))
    return InFlight(proposed, TruncatedDistributions(ids, q.astype(np.float32)), was_ahead=False)


@given(taught=flights(), asked=flights(), added=st.integers(0, 9), verified_rate=st.floats(0, 1))
def test_outcomes_exclude_each_other(
    taught: InFlight, asked: InFlight, added: int, verified_rate: float
) -> None:
    """So that their probabilities are no more than 1 together, with that of all being accepted."""
    model = OutcomeModel()
    for num_accepted in range(len(taught.token_ids) + 1):
        for _ in range(20):
            model.observe(taught, (*taught.token_ids[:num_accepted], added), SAMPLED)
    for rate in (1.0, verified_rate):
        probabilities = model.probabilities(asked, SAMPLED, rate)
        assert probabilities.shape == asked.candidates.token_ids.shape
        assert (probabilities >= 0).all()
        assert probabilities.sum() <= 1 + 1e-9
        reach = model.reach(asked, SAMPLED, rate)
        assert 0 <= reach <= 1
        if asked.has_bonus:
            before = probabilities[:-1].sum()
            assert before + reach <= 1 + 1e-9


def test_even_chances_do_not_add_up_to_more_than_all() -> None:
    width = 31  # the least likely of their bucket
    q = np.full((1, width), 1 / width, np.float32)
    ids = np.arange(width, dtype=np.int32).reshape(1, width)
    one = InFlight((), TruncatedDistributions(ids, q), was_ahead=False)
    assert OutcomeModel().probabilities(one, SAMPLED, 1.0).sum() == pytest.approx(1.0)
