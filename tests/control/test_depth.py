import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.control.depth import (
    NO_LIMIT,
    Batch,
    Chains,
    DepthPlan,
    Numbers,
    plan_depths,
    uniform_plan,
)
from specray.control.roofline import StepLoad
from tests.control.chains import even_chains

rates = st.floats(0.0, 1.0)
chance_chains = st.lists(st.lists(rates, max_size=4), max_size=3)


@dataclass
class Law:
    """A step time as a function of the number of tokens."""

    of: Callable[[Numbers], Numbers]

    def predict(self, load: StepLoad, num_drafts: Numbers) -> Numbers:
        return self.of(load.num_tokens + num_drafts)


def linear(base: float, cost: float) -> Law:
    return Law(lambda n: base + cost * n)


def chains_of(rates_of_tokens: list[list[float]]) -> Chains:
    """Chains whose tokens are each accepted, after those before, with a rate of their own."""
    depth = max(map(len, rates_of_tokens), default=0)
    survivals = np.zeros((len(rates_of_tokens), depth))
    for row, chain in enumerate(rates_of_tokens):
        survivals[row, : len(chain)] = np.cumprod(chain)
    return Chains(survivals, np.array([len(chain) for chain in rates_of_tokens], np.intp))


def batch_of(num_chains: int, num_plain: int = 0, wait_s: float = 0.0, prefill: int = 0) -> Batch:
    num_sure = num_plain + num_chains
    load = StepLoad(num_sure + (prefill > 0), num_sure + prefill, 0)
    return Batch(load, num_sure, wait_s=wait_s)


def goodput(chains: Chains, depths: tuple[int, ...], batch: Batch, law: Law) -> float:
    """Expected commits per second of any depths."""
    gained = sum(
        float(row[:depth].sum()) for row, depth in zip(chains.survivals, depths, strict=True)
    )
    seconds = float(law.of(np.array([batch.load.num_tokens + sum(depths)], float))[0])
    return (batch.num_sure + gained) / (seconds + batch.wait_s - batch.sunk_s)


def best_goodput(chains: Chains, batch: Batch, law: Law, most: int = NO_LIMIT) -> float:
    """That of the best of all depths, by trying them all."""
    choices = itertools.product(*(range(depth + 1) for depth in chains.max_depths))
    return max(goodput(chains, c, batch, law) for c in choices if sum(c) <= most)


@given(
    *(chance_chains, st.integers(0, 5), st.floats(1e-3, 1.0), st.floats(0.0, 0.5)),
    *(st.integers(0, 12), st.floats(0, 0.5), st.floats(0, 1), st.integers(0, 40)),
)
def test_no_other_depths_have_a_higher_goodput(
    tokens: list[list[float]],
    num_plain: int,
    base: float,
    cost: float,
    bend: int,
    more: float,
    wait_s: float,
    prefill: int,
) -> None:
    law = Law(lambda n: base + cost * n + more * np.maximum(0.0, n - bend))
    chains, batch = chains_of(tokens), batch_of(len(tokens), num_plain, wait_s, prefill)
    plan = plan_depths(chains, batch, law)

    assert plan.goodput == pytest.approx(best_goodput(chains, batch, law))
    assert all(0 <= d <= most for d, most in zip(plan.depths, chains.max_depths, strict=True))


@given(
    *(chance_chains, st.floats(1e-3, 1.0), st.floats(0.0, 0.5)),
    *(st.floats(1.0, 2.0), st.floats(0, 1), st.integers(0, 40)),
)
def test_prudence_chooses_as_if_draft_tokens_took_longer(
    tokens: list[list[float]],
    base: float,
    cost: float,
    prudence: float,
    wait_s: float,
    prefill: int,
) -> None:
    chains, batch = chains_of(tokens), batch_of(len(tokens), 1, wait_s, prefill)
    sure = batch.load.num_tokens
    law = linear(base, cost)
    dearer = Law(lambda n: base + cost * n + (prudence - 1) * cost * (n - sure))
    plan = plan_depths(chains, replace(batch, prudence=prudence), law)

    best = best_goodput(chains, batch, dearer)
    assert goodput(chains, plan.depths, batch, dearer) == pytest.approx(best)
    assert plan.goodput == pytest.approx(goodput(chains, plan.depths, batch, law))


@given(chance_chains, st.integers(0, 12))
def test_a_budget_is_kept_and_spent_on_the_best(tokens: list[list[float]], most: int) -> None:
    chains, law = chains_of(tokens), linear(1.0, 0.01)
    batch = Batch(StepLoad(len(tokens), len(tokens), 0), len(tokens), max_drafts=most)
    plan = plan_depths(chains, batch, law)

    assert sum(plan.depths) <= most
    assert plan.goodput == pytest.approx(best_goodput(chains, batch, law, most))


@given(chance_chains, st.integers(0, 5), st.floats(0, 1))
def test_the_promise_is_that_of_the_depths(
    tokens: list[list[float]], num_plain: int, wait_s: float
) -> None:
    law = linear(0.05, 0.001)
    chains, batch = chains_of(tokens), batch_of(len(tokens), num_plain, wait_s)
    plan = plan_depths(chains, batch, law)

    num_tokens = num_plain + len(tokens) + sum(plan.depths)
    assert plan.step_s == pytest.approx(0.05 + 0.001 * num_tokens + wait_s)
    assert plan.goodput == pytest.approx(goodput(chains, plan.depths, batch, law))


@given(
    st.lists(st.lists(rates, min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.lists(st.floats(0.01, 1.0), min_size=20, max_size=20),
)
def test_whether_a_token_is_taken_depends_on_none_behind_it(
    tokens: list[list[float]], others: list[float], steps: list[float]
) -> None:
    jumpy = Law(lambda n: np.cumsum(steps)[n.astype(int)])  # no convex law: the worst case
    batch = batch_of(len(tokens))
    first = tokens[0]
    for place in range(1, len(first)):
        same_up_to_here = [[*first[:place], *others][: len(first)], *tokens[1:]]
        before = plan_depths(chains_of(tokens), batch, jumpy).depths[0]
        after = plan_depths(chains_of(same_up_to_here), batch, jumpy).depths[0]
        assert min(before, place) == min(after, place)


def best_of_the_likeliest(chains: Chains, batch: Batch, law: Law) -> float:
    """Of as many tokens as there may be, always those most likely to survive."""
    survivals = np.sort(chains.survivals[chains.survivals > 0])[::-1]
    expected = batch.num_sure + np.concatenate(([0.0], np.cumsum(survivals)))
    seconds = law.predict(batch.load, np.arange(len(expected), dtype=float))
    return float((expected / seconds).max())


def mixture(idle_share: float, fixed_s: float) -> Law:
    """Steps that read experts: the first draft tokens bring the most of them."""
    return Law(lambda n: fixed_s + 1 - idle_share**n)


def test_a_mixture_s_steps_are_never_slower_than_plain_ones_and_hardly_than_the_best() -> None:
    rng, lost = np.random.default_rng(0), []
    choices = itertools.product((6 / 8, 28 / 32, 120 / 128), (0.05, 0.3), (1, 2, 4, 8, 16, 32))
    for idle_share, fixed_s, num_chains in choices:
        law = mixture(idle_share, fixed_s)
        for _ in range(10):
            rates = rng.uniform(0.2, 0.9, num_chains).tolist()
            chains = even_chains(rates, rng.integers(1, 6, num_chains).tolist())
            batch = replace(batch_of(num_chains), prudence=1.15)
            chosen = goodput(chains, plan_depths(chains, batch, law).depths, batch, law)
            plain = goodput(chains, (0,) * num_chains, batch, law)
            best = best_of_the_likeliest(chains, batch, law)
            assert chosen >= plain
            lost.append(1 - chosen / best)

    assert np.mean(lost) < 0.01
    assert max(lost) < 0.3


def test_tokens_that_cost_nothing_are_all_taken() -> None:
    chains = even_chains([0.1, 1.0, 0.5], [3, 5, 0])

    assert plan_depths(chains, batch_of(3), linear(0.05, 0.0)).depths == (3, 5, 0)


def test_a_token_that_is_never_accepted_is_not_taken_even_for_free() -> None:
    assert plan_depths(even_chains([0.0], [8]), batch_of(1), linear(0.05, 0.0)).depths == (0,)


def test_a_full_batch_leaves_no_room_for_poor_drafts() -> None:
    chains = even_chains([0.6] * 64, [5] * 64)

    assert plan_depths(chains, batch_of(64), linear(0.0, 0.001)).depths == (0,) * 64


def test_a_chunk_of_a_prefill_leaves_no_room_beyond_the_ridge() -> None:
    law = Law(lambda n: 0.05 + 0.01 * np.maximum(0.0, n - 64))
    chains = even_chains([0.6] * 4, [5] * 4)

    assert plan_depths(chains, batch_of(4), law).depths == (5,) * 4
    assert plan_depths(chains, batch_of(4, prefill=60), law).depths == (0,) * 4


def test_the_likelier_request_gets_the_depth() -> None:
    depths = plan_depths(even_chains([0.4, 0.9], [5, 5]), batch_of(2, 2), linear(1, 0.1)).depths

    assert depths[1] > depths[0]


def test_an_empty_step_promises_nothing() -> None:
    plan = plan_depths(even_chains([], []), batch_of(0), linear(0.05, 0.0))

    assert (plan.depths, plan.goodput) == ((), 0.0)


def test_nothing_is_promised_while_no_step_was_measured() -> None:
    plan = plan_depths(even_chains([0.9], [5]), batch_of(1, 3), linear(0.0, 0.0))

    assert (plan.depths, plan.goodput) == ((0,), 0.0)


def test_a_wait_without_end_is_not_worth_it() -> None:
    plan = plan_depths(even_chains([0.9], [5]), batch_of(1, 0, math.inf), linear(0.05, 0.0))

    assert (plan.depths, plan.goodput) == ((0,), 0.0)


def test_goodput_is_tokens_per_second() -> None:
    assert DepthPlan((), 10.0, 0.5, 0.4).goodput == 20.0


@given(chance_chains, st.integers(0, 5), st.integers(0, 6), st.floats(0.0, 0.04))
def test_a_uniform_plan_is_worth_what_its_depths_are(
    tokens: list[list[float]], num_plain: int, depth: int, sunk_s: float
) -> None:
    law = linear(0.05, 0.001)
    chains = chains_of(tokens)
    batch = replace(batch_of(len(tokens), num_plain), sunk_s=sunk_s)
    plan = uniform_plan(depth, chains, batch, law)

    assert plan.depths == tuple(min(depth, len(chain)) for chain in tokens)
    assert plan.goodput == pytest.approx(goodput(chains, plan.depths, batch, law))


def test_a_uniform_plan_keeps_the_budget() -> None:
    batch = Batch(StepLoad(3, 3, 0), 3, max_drafts=7)

    for depth in (5, 10**12):  # what nobody counts down from
        plan = uniform_plan(depth, even_chains([0.9] * 3, [5, 5, 1]), batch, linear(0.05, 0.0))

        assert plan.depths == (3, 3, 1)


@given(chance_chains, st.integers(0, 3))
def test_what_is_saved_is_the_time_of_as_many_tokens_without_drafts(
    rates: list[list[float]], num_plain: int
) -> None:
    chains, batch, law = chains_of(rates), batch_of(len(rates), num_plain), linear(1.0, 0.1)
    plan = plan_depths(chains, batch, law)
    plain = plan_depths(chains_of([]), batch, law)

    if batch.num_sure == 0:
        assert plan.saved_s == 0.0
    else:
        plain_s = plan.num_expected / plain.goodput
        assert plan.saved_s == pytest.approx(plain_s - plan.step_s, abs=1e-9)
        assert plan.saved_s >= -1e-9


@given(chance_chains, st.integers(0, 3), st.floats(0.0, 2.0), st.floats(0.0, 0.5))
def test_a_plan_knows_the_step_without_drafts(
    rates: list[list[float]], num_plain: int, wait_s: float, sunk_s: float
) -> None:
    """Which needs no plan of its own then: the same as of nobody that may speculate."""
    chains, law = chains_of(rates), linear(1.0, 0.1)
    batch = replace(batch_of(len(rates), num_plain, wait_s), sunk_s=sunk_s)
    plain = plan_depths(chains_of([]), replace(batch, wait_s=0.0), law)

    assert plan_depths(chains, batch, law).plain_s == plain.step_s
    assert uniform_plan(2, chains, batch, law).plain_s == plain.step_s
