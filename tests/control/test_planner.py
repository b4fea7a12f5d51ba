import itertools
import math
import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.control.acceptance import AcceptanceRate, request_acceptance
from specray.control.depth import DepthPlan
from specray.control.hardware import HardwareProfile
from specray.control.latency import WaitTime
from specray.control.loops import taking
from specray.control.planner import Planner, Surroundings
from specray.control.probes import PROBE_DEPTH
from specray.control.roofline import ModelShape, Roofline, StepLoad
from specray.control.step_time import StepTimeModel
from specray.control.survival import Offer
from specray.types import DepthRule, FixedRule, GoodputRule

MAX_DEPTH = 5


def memory_bound(num_tokens: int) -> float:
    return 0.050 + 0.0015 * num_tokens


def load(num_tokens: int) -> StepLoad:
    return StepLoad(num_tokens, num_tokens, 0)


def always(seconds: float) -> WaitTime:
    return lambda _: seconds


class Engine:
    """Requests that decode together, with drafts of a quality that the test chooses."""

    def __init__(
        self, num_requests: int = 1, latency_s: float = 0.003, waited_s: float | None = None
    ) -> None:
        self.planner = Planner()
        self.acceptances = [request_acceptance() for _ in range(num_requests)]
        self.quality = 0.8
        self.qualities: dict[int, float] = {}  # of requests whose drafts are others
        self.latency_s = latency_s
        self.waited_s = latency_s if waited_s is None else waited_s
        self.wait_s: WaitTime | None = None  # if the wait is not always the same
        self.elapsed_s = 0.0
        self.num_committed = 0
        self._depths = (0,) * num_requests
        self._rng = random.Random(0)

    def leave(self, num_requests: int) -> None:
        """Only so many go on."""
        self.acceptances = self.acceptances[:num_requests]
        self._depths = self._depths[:num_requests]

    def run(self, num_steps: int) -> list[tuple[int, ...]]:
        """The depths wanted after each step."""
        return [self._step() for _ in range(num_steps)]

    def _step(self) -> tuple[int, ...]:
        if self.planner.is_learning_due:
            self.planner.learn()
        num_tokens = len(self._depths) + sum(self._depths)
        seconds = memory_bound(num_tokens)
        self.elapsed_s += seconds + self.latency_s * any(self._depths)
        for i, (acceptance, depth) in enumerate(zip(self.acceptances, self._depths, strict=True)):
            quality = self.qualities.get(i, self.quality)
            self.num_committed += 1 + self._verify(acceptance, depth, quality)
        self.planner.observe_step(load(num_tokens), seconds)
        offers = [Offer(acceptance, "model", MAX_DEPTH) for acceptance in self.acceptances]
        self._depths = self.planner.wanted_depths(
            offers, 0, self.wait_s or always(self.latency_s), waited_s=self.waited_s
        )
        return self._depths

    def _verify(self, acceptance: AcceptanceRate, depth: int, quality: float) -> int:
        accepted = itertools.takewhile(lambda _: self._rng.random() < quality, range(depth))
        num_accepted = len(list(accepted))
        if depth:
            self.planner.observe_verification(Offer(acceptance, "model", depth), num_accepted)
        return num_accepted


@pytest.mark.parametrize("per_token_s", [0.0, 0.004, 0.012, 0.03])
def test_proposals_are_as_deep_as_is_worth_the_wait_for_their_last_token(
    per_token_s: float,
) -> None:
    engine = Engine()
    engine.run(300)
    offers = [Offer(acceptance, "model", MAX_DEPTH) for acceptance in engine.acceptances]
    wait_s = [0.002 + per_token_s * depth for depth in range(MAX_DEPTH + 1)]
    depths = [engine.planner.wanted_depths(offers, 0, wait_s.__getitem__) for _ in range(40)]

    goodput = [
        sum(engine.quality**i for i in range(depth + 1)) / (memory_bound(1 + depth) + wait_s[depth])
        for depth in range(1, MAX_DEPTH + 1)
    ]
    assert max(goodput) < 1.03 * goodput[depths[-1][0] - 1]
    assert depths[-1] == depths[20]


def test_a_long_step_with_a_prefill_makes_no_proposal_deeper() -> None:
    engine = Engine()
    engine.run(300)
    offers = [Offer(acceptance, "model", MAX_DEPTH) for acceptance in engine.acceptances]

    def wait_s(depth: int) -> float:
        return 0.002 + 0.012 * depth

    before = [engine.planner.wanted_depths(offers, 0, wait_s) for _ in range(40)][-1]
    engine.planner.observe_step(StepLoad(2, 500, 0, num_prefill_tokens=499), 5.0)

    assert engine.planner.wanted_depths(offers, 0, wait_s) == before < (MAX_DEPTH,)


def test_no_proposal_is_deeper_than_steps_wait_for() -> None:
    engine = Engine()
    engine.run(300)
    offers = [Offer(acceptance, "model", MAX_DEPTH) for acceptance in engine.acceptances]
    longest = 4

    def wait_s(depth: int) -> float:
        return 0.001 * depth if depth <= longest else math.inf

    assert engine.planner.wanted_depths(offers, 0, always(0.0), full_wait_s=wait_s) == (4,)
    longest = 2  # known at once, as deeper proposals would be lost
    assert engine.planner.wanted_depths(offers, 0, always(0.0), full_wait_s=wait_s) == (2,)
    longest = 0  # then only those count that happen to be in time, and some short ones are tried
    depths = [
        engine.planner.wanted_depths(offers, 0, always(0.0), full_wait_s=wait_s) for _ in range(400)
    ]
    assert set(depths[20:]) == {(1,), (5,)}
    assert depths.count((1,)) < 80


def test_a_fixed_depth_is_asked_for_however_long_it_takes() -> None:
    engine = Engine()
    engine.planner.follow(FixedRule(depth=5))
    engine.run(20)
    offers = [Offer(acceptance, "model", MAX_DEPTH) for acceptance in engine.acceptances]

    assert engine.planner.wanted_depths(offers, 0, lambda depth: 0.1 * depth) == (5,)


def test_no_step_waits_for_loops_to_be_compiled_when_the_rule_changes() -> None:
    taking.cache_clear()

    Planner(FixedRule(depth=5))

    assert taking.cache_info().currsize == 1


def test_a_good_draft_is_used_to_the_full_from_the_first_steps_on() -> None:
    depths = Engine().run(200)

    assert all(depth >= MAX_DEPTH - 2 for (depth,) in depths)
    assert depths[100:] == [(MAX_DEPTH,)] * 100


def test_a_useless_draft_is_soon_left_alone_and_costs_next_to_nothing() -> None:
    engine = Engine()
    engine.quality = 0.0
    depths = engine.run(1000)

    assert sum(depth > 0 for (depth,) in depths[:40]) < 25
    assert sum(depth > 0 for (depth,) in depths[40:]) <= 15  # probes
    plain_s = engine.num_committed * memory_bound(1)
    assert engine.elapsed_s < 1.01 * plain_s


def test_probes_are_short_and_rarer_and_rarer() -> None:
    engine = Engine()
    engine.quality = 0.0
    engine.run(300)
    depths = engine.run(1000)

    probes = [step for step, (depth,) in enumerate(depths) if depth > 0]
    pauses = [after - before for before, after in itertools.pairwise(probes)]
    assert {depth for (depth,) in depths} == {0, PROBE_DEPTH}
    assert pauses == sorted(pauses)
    assert max(pauses) == pauses[-1] == pauses[-2]  # they never end


def test_a_step_without_sessions_does_not_hasten_the_next_probe() -> None:
    engine = Engine()
    engine.quality = 0.0
    engine.run(1000)
    probes = 0
    for _ in range(400):
        engine.planner.wanted_depths((), 1, always(0.003))  # a chunk of somebody's prefill
        engine.run(1)
        probes += engine.planner.is_probing
    assert 0 < probes <= 4


def test_a_draft_that_becomes_good_is_taken_up_again() -> None:
    engine = Engine()
    engine.quality = 0.0
    engine.run(300)
    engine.quality = 0.9
    depths = engine.run(1200)

    assert depths[-50:] == [(MAX_DEPTH,)] * 50


@pytest.mark.parametrize("num_requests", [1, 8])
def test_it_comes_back_soon_after_minutes_at_depth_0(num_requests: int) -> None:
    engine = Engine(num_requests)
    engine.run(100)  # a good draft for a while, then a useless one
    engine.quality = 0.0
    engine.run(1500)  # more than a minute
    engine.quality = 0.9
    depths = engine.run(450)

    assert all(min(of_step) >= 3 for of_step in depths[-20:])


def test_probes_cost_little_however_dear_each_is() -> None:
    engine = Engine(num_requests=8, latency_s=0.045)
    engine.quality = 0.0
    engine.run(500)
    seconds, committed = engine.elapsed_s, engine.num_committed
    depths = engine.run(1500)

    plain_s = (engine.num_committed - committed) / 8 * memory_bound(8)
    assert engine.elapsed_s - seconds < 1.006 * plain_s
    assert max(sum(depth > 0 for depth in of_step) for of_step in depths) == 4


def test_what_waits_made_too_dear_is_tried_soon_at_another_load() -> None:
    engine = Engine(num_requests=8, latency_s=0.1)
    engine.quality = 0.5
    before = engine.run(1500)[-60:]
    engine.leave(1)
    depths = engine.run(20)

    assert sum(any(of_step) for of_step in before) <= 1
    assert 1 <= sum(depth > 0 for (depth,) in depths) <= 2


def test_what_is_always_wrong_is_not_tried_more_often_at_another_load() -> None:
    engine = Engine(num_requests=8)
    engine.quality = 0.0
    engine.run(1500)
    num_tried = 0
    for num_requests in (4, 2, 1):
        engine.leave(num_requests)
        num_tried += sum(any(depths) for depths in engine.run(60))

    assert num_tried <= 3  # of 180 steps; 128 lie between two tries


def test_a_gain_within_the_noise_is_not_taken_up_and_given_up_in_turn() -> None:
    engine = Engine()
    engine.quality = 0.12  # its worth about its cost
    engine.latency_s = 0.0045
    engine.run(300)
    is_on = [depth > 0 for (depth,) in engine.run(1000)]

    assert sum(now != before for before, now in itertools.pairwise(is_on)) < 60


def test_all_requests_are_probed_in_the_same_step() -> None:
    engine = Engine(num_requests=4)
    engine.quality = 0.0
    engine.run(200)
    depths = engine.run(300)

    assert set(depths) == {(0,) * 4, (PROBE_DEPTH,) * 4}


@pytest.mark.parametrize(("num_bad", "most_probes"), [(4, 8), (13, 40)])
def test_a_good_draft_among_useless_ones_is_found(num_bad: int, most_probes: int) -> None:
    engine = Engine(num_bad + 1)
    engine.quality = 0.0
    engine.run(400)
    engine.qualities[num_bad] = 0.9  # the last in order
    num_probes = 0
    while engine.planner.is_off:
        engine.run(1)
        num_probes += engine.planner.is_probing
        assert num_probes <= most_probes

    *bad, good = np.mean(engine.run(100)[50:], axis=0)
    assert good >= 3
    assert max(bad) < 1


def test_all_get_their_turn_and_those_that_are_told_of_it_are_probed() -> None:
    engine = Engine(num_requests=10)
    engine.quality = 0.0
    engine.run(300)
    num_probed = [0] * 10
    told: frozenset[int] = frozenset()
    for _ in range(1500):
        (depths,) = engine.run(1)
        probed = {i for i, depth in enumerate(depths) if depth > 0}
        assert not probed or probed == told
        told = engine.planner.near
        for i in probed:
            num_probed[i] += 1

    assert min(num_probed) >= 3
    assert max(num_probed) - min(num_probed) <= 1


def test_whether_it_probes_is_known() -> None:
    engine = Engine()
    engine.quality = 0.0
    engine.run(200)

    for _ in range(300):
        (depth,) = engine.run(1)[0]
        assert engine.planner.is_probing == (depth > 0)


def test_a_draft_that_takes_longer_than_it_saves_is_not_waited_for() -> None:
    engine = Engine(latency_s=0.2)
    depths = engine.run(300)

    assert sum(depth > 0 for (depth,) in depths) <= 8


def test_a_wait_without_end_leaves_only_probes() -> None:
    engine = Engine(latency_s=math.inf)

    assert set(engine.run(300)) == {(0,), (PROBE_DEPTH,)}


def test_probes_are_the_rarer_the_longer_their_steps_wait_for_them() -> None:
    def num_probes(waited_s: float) -> int:
        engine = Engine(latency_s=math.inf, waited_s=waited_s)
        return sum(depth > 0 for (depth,) in engine.run(6000))

    few, more = num_probes(10 * memory_bound(1)), num_probes(memory_bound(1))
    assert 1 <= few < more / 4


def test_a_rule_that_does_not_weigh_costs_knows_nothing_of_what_did_not_pay() -> None:
    engine = Engine(latency_s=math.inf)
    engine.run(100)
    engine.planner.follow(FixedRule(3))

    assert set(engine.run(20)) == {(3,)}


def test_a_new_request_starts_with_what_its_source_has_shown() -> None:
    engine = Engine()
    engine.quality = 0.0
    engine.run(200)
    offers = [
        Offer(request_acceptance(), source, MAX_DEPTH) for source in ("model", "prompt_lookup")
    ]

    poor, unknown = engine.planner.plan(offers, 0).depths

    assert poor < unknown


def test_the_acceptance_of_one_request_is_not_that_of_another() -> None:
    engine = Engine(num_requests=2)
    engine.run(5)
    good, poor = engine.acceptances
    for _ in range(20):
        engine.planner.observe_verification(Offer(good, "model", 4), 4)
        engine.planner.observe_verification(Offer(poor, "model", 4), 0)
        engine.planner.learn()

    depths = engine.planner.plan([Offer(a, "model", MAX_DEPTH) for a in (good, poor)], 0).depths

    assert depths[0] == MAX_DEPTH
    assert depths[1] < 2


@given(st.lists(st.integers(0, 64), min_size=1, max_size=6), st.floats(0, 0.1), st.integers(0, 3))
def test_nobody_is_asked_for_more_than_the_cap(
    caps: list[int], wait_s: float, num_others: int
) -> None:
    planner = Planner()
    offers = [Offer(request_acceptance(), "model", cap) for cap in caps]
    for step in range(40):  # probes among them
        planner.observe_step(load(len(caps) + step % 3), memory_bound(len(caps)))
        planner.learn()
        depths = planner.wanted_depths(offers, num_others, always(wait_s))

        assert all(0 <= depth <= cap for depth, cap in zip(depths, caps, strict=True))


def test_nothing_is_asked_for_and_no_probe_made_without_room() -> None:
    engine = Engine()
    engine.run(1)
    for _ in range(300):
        offer = Offer(engine.acceptances[0], "model", 0)
        assert engine.planner.wanted_depths([offer], 0, always(0.0)) == (0,)
        assert not engine.planner.is_probing


def test_after_want_of_room_it_goes_on_at_once() -> None:
    engine = Engine()
    engine.run(50)
    for num_steps in range(1, 60):
        for _ in range(num_steps):
            engine.planner.wanted_depths([Offer(engine.acceptances[0], "model", 0)], 0, always(0.0))
        offer = Offer(engine.acceptances[0], "model", MAX_DEPTH)
        assert any(engine.planner.wanted_depths([offer], 0, always(0.0)))


def test_a_probe_takes_no_more_room_than_there_is() -> None:
    """Draft tokens without room in the KV cache would drive a request out of it."""
    planner = Planner()
    offers = [Offer(request_acceptance(), source, 5) for source in ("model", "ngram", "model")]
    stop_gap = Offer(request_acceptance(), "stop_gap", 5)

    assert planner.with_probes([*offers, stop_gap], (0, 3, 0, 0)) == (2, 3, 2, 0)
    planner.expect(Surroundings(max_drafts=4), 0.0)
    assert planner.with_probes([*offers, stop_gap], (0, 1, 0, 0)) == (2, 2, 0, 0)
    planner.expect(Surroundings(max_drafts=0), 0.0)
    assert planner.with_probes([*offers, stop_gap], (0, 0, 0, 0)) == (0, 0, 0, 0)


def test_what_has_been_given_up_is_looked_at_less_often_and_found_soon() -> None:
    engine = Engine()
    engine.quality = 0.0
    engine.run(300)
    engine.quality = 0.8
    while not engine.planner.is_probing:
        engine.run(1)
    looks = 0
    while engine.planner.is_off:
        engine.run(1)
        looks += 1
    assert looks < 400  # within three probes of 128 steps each at most, and three steps more


@pytest.mark.parametrize("num_requests", [0, 1, 3])
def test_before_the_first_measured_step_nothing_is_asked_for(num_requests: int) -> None:
    offers = [Offer(request_acceptance(), "model", MAX_DEPTH)] * num_requests

    assert Planner().wanted_depths(offers, 0, always(0.0)) == (0,) * num_requests


def test_the_prospect_is_what_speculation_brings_where_nobody_waits() -> None:
    engine = Engine()
    engine.run(200)
    waiting = Engine()
    waiting.latency_s = 10.0
    waiting.run(40)

    assert engine.planner.prospect.gain > 2
    assert engine.planner.prospect.step_s == pytest.approx(memory_bound(1 + MAX_DEPTH), rel=0.1)
    assert waiting.planner.is_off
    assert waiting.planner.prospect.gain > 1.5


@pytest.mark.parametrize("rule", [GoodputRule(), FixedRule(depth=3)])
def test_a_prefill_makes_no_prospect_better(rule: DepthRule) -> None:
    """Each token takes as long as any other, so that no draft token pays."""
    gains = []
    for num_prefill_tokens in (0, 500):
        planner = Planner(rule)
        for size in (4, 8, 16, 32, 64, 128, 504) * 30:
            planner.observe_step(load(size), 0.005 * size)
        planner.learn()
        num_prefills = int(num_prefill_tokens > 0)
        planner.expect(Surroundings(0, num_prefills, num_prefill_tokens), 0.0)
        offers = [Offer(request_acceptance(), "model", MAX_DEPTH) for _ in range(4)]
        planner.wanted_depths(offers, 0, always(0.0))
        gains.append(planner.prospect.gain)

    assert gains[1] == pytest.approx(gains[0], rel=0.1)


def test_what_has_been_given_up_is_not_soon_thought_well_of() -> None:
    engine = Engine()
    engine.run(100)
    engine.quality = 0.0
    engine.run(600)

    assert engine.planner.prospect.gain < 1.2


def test_steps_in_which_nothing_runs_teach_nothing() -> None:
    """The last request ends while drafts rest, and vLLM flushes what has ended."""
    engine, idle = Engine(), Engine()
    for each in (engine, idle):
        each.run(300)
    for _ in range(50):
        while not idle.planner._slowdown.take_rest():
            pass
        idle.planner.observe_step(load(0), 0.0002)
    assert idle.planner._slowdown.factor == engine.planner._slowdown.factor


def test_hardware_that_is_measured_late_takes_nothing_away_that_was_learnt() -> None:
    shape = ModelShape(1e9, 2e9, 1e5, 16, 2048)
    roofline = Roofline(shape, HardwareProfile("new", 1e12, {"bfloat16": 1e14}, 3e10))
    planner = Planner()
    planner.observe_step(load(4), 0.5)
    planner.learn_hardware(roofline)

    assert planner.step_time.step_s(load(4)) == pytest.approx(0.5)
    assert planner.hardware == "new"
    assert planner.intensity() == roofline.intensity(load(4))


def test_where_sampling_is_dear_requests_that_sample_draft_less() -> None:
    step_time = StepTimeModel()
    for num_drafts in (0, 3, 8) * 100:
        for num_sampled in (0, 4 + num_drafts):
            held = StepLoad(4, 4 + num_drafts, 0, num_sampled)
            step_time.observe(held, 0.05 + 0.0015 * held.num_tokens + 0.03 * num_sampled)
    planner = Planner(step_time=step_time)
    offers = [Offer(request_acceptance(), "model", 5)] * 4

    planner.expect(Surroundings(), 0.0)
    greedy = planner.plan(offers, 0).depths
    planner.expect(Surroundings(num_sampled=4), 0.0)
    sampled = planner.plan(offers, 0).depths

    assert sum(sampled) < sum(greedy) / 2


@pytest.mark.parametrize("overhead_s", [0.0, 0.120])
def test_what_draft_tokens_take_between_steps_counts(overhead_s: float) -> None:
    engine = Engine(latency_s=0.0)
    engine.quality = 0.66
    for _ in range(100):
        engine.planner.observe_turnaround(0.001, 1, is_speculative=False)
        engine.planner.observe_turnaround(0.001 + overhead_s, 1, is_speculative=True)
    depths = engine.run(400)

    num_speculative = sum(depth > 0 for (depth,) in depths)
    assert num_speculative < 40 if overhead_s else num_speculative == 400


@pytest.mark.parametrize(("base_s", "is_taken"), [(0.005, False), (0.060, True)])
def test_what_would_hardly_pay_is_not_verified(base_s: float, is_taken: bool) -> None:
    """By a twentieth more than what it costs, or by far more."""
    planner = Planner()
    for size in (8, 16) * 200:
        planner.observe_step(StepLoad(8, size, 0), base_s + 0.01 * size)
    acceptance = request_acceptance()
    offers = [Offer(acceptance, "model", 1)] * 8
    for _ in range(50):
        planner.observe_verification(offers[0], 1)
    planner.learn()

    assert any(planner.plan(offers, 0).depths) == is_taken
    assert any(planner.wanted_depths(offers, 0, always(0.0))) == is_taken


@pytest.mark.parametrize("num_prefill_tokens", [0, 100])
def test_a_prefill_beside_it_makes_no_draft_token_worth_its_time(num_prefill_tokens: int) -> None:
    """Each token takes as long as any other, so that no draft token saves anything."""
    planner = Planner()
    for size in (8, 16, 32, 64, 128) * 30:
        planner.observe_step(load(size), 0.005 * size)
    planner.learn()
    planner.expect(Surroundings(num_prefills=1, num_prefill_tokens=num_prefill_tokens), 0.0)
    plan = planner.plan([Offer(request_acceptance(), "model", MAX_DEPTH)] * 8, 0)

    assert sum(plan.depths) <= 1


def test_where_steps_read_weights_a_prefill_leaves_draft_tokens_their_worth() -> None:
    planner = Planner()
    for size in (8, 16, 32, 64, 128) * 30:
        planner.observe_step(load(size), memory_bound(size))
    planner.learn()
    planner.expect(Surroundings(num_prefills=1, num_prefill_tokens=100), 0.0)
    plan = planner.plan([Offer(request_acceptance(), "model", MAX_DEPTH)] * 8, 0)

    assert min(plan.depths) >= 2


def test_a_prefill_makes_no_wait_seem_short() -> None:
    """It has to be paid whatever is verified beside it, so that a wait saves nothing of it."""
    engine = Engine(latency_s=0.25)
    engine.run(40)
    offers = [Offer(acceptance, "model", MAX_DEPTH) for acceptance in engine.acceptances]
    engine.planner.expect(Surroundings(num_prefills=1, num_prefill_tokens=500), 0.0)
    depths = [engine.planner.wanted_depths(offers, 0, always(0.25)) for _ in range(8)]

    assert max(depths) <= (PROBE_DEPTH,)


def plain_turns(planner: Planner, num_steps: int, num_prefill_tokens: int = 0) -> int:
    """How many of so many steps with drafts that always pay are plain ones."""
    planner.expect(Surroundings(num_prefill_tokens=num_prefill_tokens), 0.0)
    num_taken = 0
    for _ in range(num_steps):
        is_plain = planner.take_plain_turn(8)
        num_tokens = 8 if is_plain else 24
        planner.observe_step(StepLoad(8, num_tokens, 0), memory_bound(num_tokens))
        num_taken += is_plain
    return num_taken


def test_where_drafts_always_pay_a_plain_step_is_still_seen_now_and_then() -> None:
    assert 3 <= plain_turns(Planner(), 600) <= 8


def test_a_step_with_prefill_is_no_plain_turn() -> None:
    assert plain_turns(Planner(), 600, num_prefill_tokens=100) == 0


def test_a_rule_that_weighs_no_costs_takes_no_plain_turns() -> None:
    assert plain_turns(Planner(FixedRule(depth=2)), 600) == 0


def test_plain_turns_come_also_where_drafts_rest_as_often() -> None:
    """What is seen in a rest is not learnt as a step's time, and stands for no turn."""
    planner = Planner()
    offers = [Offer(request_acceptance(), "model", 2) for _ in range(4)]
    num_turns = num_rests = 0
    for _ in range(1500):
        is_drafting = any(planner.wanted_depths(offers, 0, always(0.0), is_beside=True))
        is_plain = planner.take_plain_turn(4)
        num_tokens = 12 if is_drafting and not is_plain else 4
        planner.observe_step(
            load(num_tokens)._replace(num_requests=4), 0.05, is_drafting=is_drafting
        )
        num_turns += is_plain and is_drafting
        num_rests += not is_drafting
        if num_tokens == 12:
            for offer in offers:
                planner.observe_verification(offer, 2)
        planner.learn()

    assert num_rests > 20
    assert num_turns > 8


def test_what_is_noted_is_learnt_from_when_there_is_time() -> None:
    engine = Engine()
    engine.run(50)
    (acceptance,) = engine.acceptances
    offers = [Offer(acceptance, "model", MAX_DEPTH)]
    before = engine.planner.plan(offers, 0)
    for _ in range(20):
        engine.planner.observe_verification(Offer(acceptance, "model", 4), 0)
        engine.planner.observe_step(load(5), 2 * memory_bound(5))

    assert engine.planner.plan(offers, 0) == before
    engine.planner.learn()
    after = engine.planner.plan(offers, 0)
    assert after.num_expected < before.num_expected
    assert after.step_s > before.step_s


def test_a_probe_that_surprises_is_soon_followed_by_another() -> None:
    engine = Engine(latency_s=0.02)  # one good probe is not enough
    engine.quality = 0.0
    engine.run(1500)
    engine.quality = 1.0
    while not any(engine.run(1)[0]):
        pass
    until_the_next = next(i for i, depths in enumerate(engine.run(400)) if any(depths))

    assert until_the_next <= 16  # pauses had grown to 128 steps


def test_what_a_probe_brought_is_learnt_and_looked_at_at_once() -> None:
    engine = Engine(latency_s=0.0)
    engine.run(300)
    engine.quality = 0.0
    engine.run(600)
    engine.quality = 1.0
    while not engine.planner.is_probing:
        engine.run(1)
    (outcome,) = engine.run(1)
    is_due = engine.planner.is_learning_due
    (after,) = engine.run(1)

    assert is_due
    assert outcome == (0,)  # it is not learnt yet
    assert after[0] > 0


def test_a_probe_that_surprises_does_so_beside_other_verifications() -> None:
    """Those of the steps before are not what is compared: a target's own guesses, for example."""

    def is_probed_soon(num_guesses: int) -> bool:
        engine = Engine(latency_s=0.03)
        engine.quality = 0.0
        engine.run(300)
        own = Offer(request_acceptance(), "stop_gap_ngram", 4)
        while not engine.planner.is_probing:
            for _ in range(num_guesses):
                engine.planner.observe_verification(own, 2)
            engine.run(1)
        engine.quality = 1.0
        engine.run(1)
        return any(depth > 0 for (depth,) in engine.run(12))

    assert is_probed_soon(num_guesses=0)
    assert is_probed_soon(num_guesses=1)


def test_where_speculation_has_long_not_paid_few_steps_look_whether_it_does() -> None:
    engine = Engine()
    engine.quality = 0.0
    engine.run(600)
    looks = 0
    plan = engine.planner.plan

    def counted(*args: Any, **kwargs: Any) -> DepthPlan:
        nonlocal looks
        looks += 1
        return plan(*args, **kwargs)

    with patch.object(engine.planner, "plan", counted):
        engine.run(160)

    assert 10 <= looks <= 40  # probes and the outlook take some, too


@pytest.mark.parametrize("per_token_s", [0.0, 0.004])
@pytest.mark.parametrize("num_steps", [390, 396, 399, 402])
def test_speculation_is_back_soon_when_load_has_gone(num_steps: int, per_token_s: float) -> None:
    """Also where only as many tokens pay as none of the looks under load asked for."""
    engine = Engine(num_requests=8)
    engine.wait_s = lambda depth: 0.03 + 0.2 * depth
    engine.run(num_steps)
    assert engine.planner.is_off
    engine.leave(1)
    engine.wait_s = lambda depth: 0.04 + per_token_s * depth

    for _ in range(20):
        (depths,) = engine.run(1)
        if any(depths) and not engine.planner.is_probing:
            return
    raise AssertionError
