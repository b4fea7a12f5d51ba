import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from specray.control.hardware import PROFILES, HardwareProfile
from specray.control.roofline import ModelShape, Roofline, StepLoad
from specray.control.step_time import StepTimeModel

SIZES = (1, 2, 6, 12)


def memory_bound(num_tokens: int) -> float:
    return 0.050 + 0.0015 * num_tokens


def near_the_ridge(num_tokens: int) -> float:
    return 0.010 + 0.010 * num_tokens


def load(num_tokens: int) -> StepLoad:
    return StepLoad(num_tokens, num_tokens, 0)


def predict(model: StepTimeModel, num_tokens: int) -> float:
    return float(model.predict(load(num_tokens), np.zeros(1))[0])


def feed(
    model: StepTimeModel,
    law: Callable[[int], float],
    num_steps: int,
    noise: float = 0.0,
    outliers: float = 0.0,
) -> None:
    rng = random.Random(0)
    for step in range(num_steps):
        num_tokens = SIZES[step % len(SIZES)]
        seconds = law(num_tokens) * rng.uniform(1 - noise, 1 + noise)
        is_outlier = rng.random() < outliers
        model.observe(load(num_tokens), seconds * 30 if is_outlier else seconds)


def predictions(model: StepTimeModel) -> list[float]:
    return [predict(model, num_tokens) for num_tokens in SIZES]


def test_nothing_is_predicted_before_the_first_step() -> None:
    model = StepTimeModel()

    assert predict(model, 8) == 0


def test_one_step_is_enough_to_predict_its_like() -> None:
    model = StepTimeModel()
    model.observe(load(4), 0.050)

    assert predict(model, 4) == pytest.approx(0.050)
    assert 0.050 < predict(model, 8) < 0.060  # a little more: tokens are nearly free, not free


@pytest.mark.parametrize("law", [memory_bound, near_the_ridge])
def test_a_noisy_law_is_found(law: Callable[[int], float]) -> None:
    model = StepTimeModel()
    feed(model, law, 300, noise=0.1)

    assert predictions(model) == pytest.approx([law(n) for n in SIZES], rel=0.06)
    assert predict(model, 24) == pytest.approx(law(24), rel=0.1)


def test_accidents_move_it_little() -> None:
    model = StepTimeModel()
    feed(model, memory_bound, 400, noise=0.05, outliers=0.02)

    assert predictions(model) == pytest.approx([memory_bound(n) for n in SIZES], rel=0.15)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
def test_a_new_law_replaces_the_old_one(factor: float) -> None:
    model = StepTimeModel()
    feed(model, memory_bound, 300)
    feed(model, lambda n: factor * memory_bound(n), 400)

    assert predictions(model) == pytest.approx([factor * memory_bound(n) for n in SIZES], rel=0.1)


@pytest.mark.parametrize("first_s", [0.0, 0.005, 0.2, 5.0])
def test_a_first_step_unlike_the_others_is_forgotten(first_s: float) -> None:
    model = StepTimeModel()
    model.observe(load(1), first_s)  # a kernel is compiled, say
    for _ in range(100):
        model.observe(load(1), memory_bound(1))

    assert predict(model, 1) == pytest.approx(memory_bound(1), rel=0.25)
    assert predict(model, 6) < 1.25 * predict(model, 1)  # and says nothing about the cost of tokens


def test_steps_of_one_size_leave_the_cost_as_it_was() -> None:
    model = StepTimeModel()
    feed(model, near_the_ridge, 300)
    rng = random.Random(0)
    for _ in range(50):
        model.observe(load(6), near_the_ridge(6) * rng.uniform(0.9, 1.1))

    assert predict(model, 12) == pytest.approx(near_the_ridge(12), rel=0.15)


def test_more_tokens_never_take_less_time() -> None:
    model = StepTimeModel()
    for _ in range(50):
        model.observe(load(1), 0.1)
        model.observe(load(32), 0.05)

    times = [predict(model, n) for n in (0, 1, 32, 1000)]
    assert times == sorted(times)
    assert times[0] >= 0


def padded(num_tokens: int, num_kv_tokens: int) -> float:
    return 0.004 + 1e-7 * num_kv_tokens + 2e-5 * max(0, num_tokens - 100)


def test_requests_kv_tokens_and_the_ridge_are_told_apart() -> None:
    model, rng = StepTimeModel(), random.Random(0)
    for _ in range(3000):
        num_tokens, kv = rng.choice((1, 4, 16, 64, 128, 256, 400)), rng.randrange(0, 100_000)
        model.observe(StepLoad(1, num_tokens, kv), padded(num_tokens, kv) * rng.gauss(1, 0.02))

    for num_tokens, kv in ((1, 0), (8, 80_000), (64, 20_000), (300, 50_000), (400, 0)):
        predicted = model.step_s(StepLoad(1, num_tokens, kv))
        assert predicted == pytest.approx(padded(num_tokens, kv), rel=0.15)


def dear_to_sample(load: StepLoad) -> float:
    return memory_bound(load.num_tokens) + 0.002 * load.num_sampled


def test_what_sampling_costs_is_told_apart_from_tokens_however_many_greedy_steps_came_before() -> (
    None
):
    model, rng = StepTimeModel(), random.Random(0)
    for _ in range(5000):
        num_tokens = rng.randrange(1, 25)
        model.observe(load(num_tokens), memory_bound(num_tokens) * rng.gauss(1, 0.03))
    for _ in range(60):
        sampled = StepLoad(8, 8 + (drafts := rng.randrange(9)), 0, 8 + drafts)
        model.observe(sampled, dear_to_sample(sampled) * rng.gauss(1, 0.03))
    costs = model.predict(StepLoad(8, 8, 0, 8), np.array([0.0, 8.0]))

    assert costs[0] == pytest.approx(dear_to_sample(StepLoad(8, 8, 0, 8)), rel=0.1)
    assert costs[1] - costs[0] == pytest.approx(8 * (0.0015 + 0.002), rel=0.3)
    assert predict(model, 16) == pytest.approx(memory_bound(16), rel=0.1)


def test_of_a_batch_half_of_which_samples_half_the_drafts_are_thought_to() -> None:
    model, rng = StepTimeModel(), random.Random(0)
    for _ in range(2000):
        num_tokens = rng.randrange(1, 25)
        mixed = StepLoad(num_tokens, num_tokens, 0, rng.randrange(num_tokens + 1))
        model.observe(mixed, dear_to_sample(mixed))
    costs = np.diff(model.predict(StepLoad(8, 8, 0, 4), np.arange(8.0)))

    assert costs == pytest.approx([0.0015 + 0.002 / 2] * 7, rel=0.1)


def test_what_was_learnt_under_load_is_known_after_a_quiet_while() -> None:
    model = StepTimeModel()
    feed(model, near_the_ridge, 300)
    for _ in range(2000):
        model.observe(load(1), near_the_ridge(1))

    assert predict(model, 12) == pytest.approx(near_the_ridge(12), rel=0.1)


def test_predictions_are_convex_whatever_is_learnt() -> None:
    model, rng = StepTimeModel(), random.Random(0)
    for _ in range(500):
        model.observe(StepLoad(2, rng.randrange(2, 700), rng.randrange(9999)), rng.uniform(0.01, 1))
    costs = np.diff(model.predict(StepLoad(2, 2, 500), np.arange(1000.0)))

    assert (costs >= 0).all()
    assert (np.diff(costs) > -1e-9).all()


def test_a_mixture_s_steps_are_learnt_from_few_tokens_and_hold_for_many() -> None:
    """Measured are other speeds than the prior's, and what a step takes beside its reads."""
    shape = ModelShape(1e8, 4e9, 1e4, 12, 1024, expert_bytes=3.8e9, idle_share=30 / 32)
    cores = HardwareProfile("cores", 1e10, {"bfloat16": 1e12}, 1e10)
    true = Roofline(shape, replace(cores, bandwidth=1.4e10), overhead_s=0.03)
    model, rng = StepTimeModel(Roofline(shape, cores)), random.Random(0)
    for _ in range(800):
        load = StepLoad(size := rng.choice((1, 2, 4)), size + rng.randrange(4), 100 * size)
        model.observe(load, true.step_s(load) * math.exp(rng.gauss(0, 0.03)))

    for size in (1, 2, 4, 16, 64):
        load = StepLoad(size, size, 100 * size)
        assert model.step_s(load) == pytest.approx(true.step_s(load), rel=0.1)
    seconds = model.predict(StepLoad(2, 2, 200), np.arange(200.0))
    assert (np.diff(seconds) > 0).all()


def core(num_tokens: int, num_prefill_tokens: int) -> float:
    """Products of few rows reach half the FLOPs that those of many do."""
    return 0.045 + 0.005 * max(0, num_tokens - num_prefill_tokens - 6) + 0.0025 * num_prefill_tokens


def test_tokens_of_prompts_do_not_make_draft_tokens_look_cheap() -> None:
    model, rng = StepTimeModel(), random.Random(0)
    for _ in range(1500):
        size, num_prefill = rng.randrange(1, 9), rng.choice((0, 0, 0, 40, 100, 200))
        num_tokens = size * rng.randrange(1, 4) + num_prefill
        seconds = core(num_tokens, num_prefill) * math.exp(rng.gauss(0, 0.05))
        num_requests = size + (num_prefill > 0)
        model.observe(StepLoad(num_requests, num_tokens, 200 * size, 0, num_prefill), seconds)
    times = model.predict(StepLoad(8, 8, 1600), np.arange(9.0))

    assert times[[0, 8]] == pytest.approx([core(8, 0), core(16, 0)], rel=0.1)
    assert times[8] - times[0] == pytest.approx(0.040, rel=0.2)
    prefill_s = model.step_s(StepLoad(1, 150, 200, 0, 150))
    assert prefill_s == pytest.approx(core(150, 150), rel=0.15)


@pytest.mark.parametrize("token_s", [0.0005, 0.002])
def test_long_prompts_cost_what_they_cost_where_draft_tokens_are_cheap(token_s: float) -> None:
    model, rng = StepTimeModel(), random.Random(0)
    for _ in range(1500):
        num_prefill = rng.choice((0, 0, 0, 200, 2000))
        num_tokens = 8 + rng.randrange(24) + num_prefill
        seconds = 0.05 + token_s * (num_tokens - num_prefill) + 0.0001 * num_prefill
        num_requests = 8 + (num_prefill > 0)
        model.observe(StepLoad(num_requests, num_tokens, 1600, 0, num_prefill), seconds)

    assert model.step_s(StepLoad(9, 2008, 1600, 0, 2000)) == pytest.approx(0.25, rel=0.15)
    assert model.step_s(StepLoad(8, 24, 1600)) == pytest.approx(0.05 + 24 * token_s, rel=0.1)


def test_tokens_of_prompts_never_make_a_step_shorter() -> None:
    model = StepTimeModel()
    for _ in range(50):
        model.observe(load(20), 0.1)
        model.observe(StepLoad(1, 500, 500, 0, 500), 0.05)

    times = [model.step_s(StepLoad(8, 8 + n, 0, 0, n)) for n in (0, 10, 100, 10_000)]
    assert times == sorted(times)


def test_what_plain_steps_take_is_still_known_after_many_with_drafts() -> None:
    model, rng = StepTimeModel(), random.Random(0)
    for step in range(4000):
        num_drafts = 0 if step % 128 == 0 else rng.randrange(4, 8)
        seconds = (0.060 + 0.008 * max(0, num_drafts - 3)) * rng.uniform(0.95, 1.05)
        model.observe(StepLoad(8, 8 + num_drafts, 0), seconds)

    assert model.step_s(StepLoad(8, 8, 0)) == pytest.approx(0.060, rel=0.07)


def roofline() -> Roofline:
    model = ModelShape(70e9, 140e9, 327_680, num_layers=80, hidden_size=8192)
    return Roofline(model, PROFILES["H100"], num_ranks=4)


def test_a_roofline_predicts_before_any_step_and_where_none_was_seen() -> None:
    start, model = roofline(), StepTimeModel(roofline())
    big = StepLoad(300, 300, 300_000)
    assert model.step_s(big) == pytest.approx(start.step_s(big))
    for size in (1, 2, 4, 8) * 30:
        small = StepLoad(size, size, 1000 * size)
        model.observe(small, 1.3 * start.step_s(small))

    assert model.step_s(StepLoad(4, 4, 4000)) == pytest.approx(1.3 * start.step_s(small), rel=0.1)
    assert 1.0 < model.step_s(big) / start.step_s(big) < 1.6


def test_it_knows_its_own_error() -> None:
    model, rng = StepTimeModel(), random.Random(0)
    for _ in range(1500):
        model.observe(load(4), memory_bound(4) * math.exp(rng.gauss(0, 0.1)))

    assert 0.04 < model.median_error < 0.10  # 0.067 of the noise, and a little of its own


def test_what_was_learnt_can_be_kept() -> None:
    model, other = StepTimeModel(), StepTimeModel()
    feed(model, near_the_ridge, 300)
    other.restore(json.loads(json.dumps(model.state())), trust=0.25)

    assert predictions(other) == pytest.approx([near_the_ridge(n) for n in SIZES], rel=0.1)
    feed(other, memory_bound, 300)
    assert predictions(other) == pytest.approx([memory_bound(n) for n in SIZES], rel=0.1)


def test_a_step_that_took_no_time_teaches_nothing() -> None:
    model = StepTimeModel()
    for seconds in (0.0, -1.0, math.nan):
        model.observe(load(4), seconds)

    assert predict(model, 4) == 0


def test_steps_without_work_between_others_teach_nothing() -> None:
    model, other = StepTimeModel(), StepTimeModel()
    for _ in range(50):
        model.observe(load(4), 0.05)
        other.observe(load(4), 0.05)
        for _ in range(5):
            model.observe(load(0), 0.0002)

    assert model.state() == other.state()


def test_one_step_that_was_much_faster_than_predicted_does_not_undo_the_rest() -> None:
    model = StepTimeModel()
    feed(model, near_the_ridge, 300)
    model.observe(load(500), 0.1)  # a prefill that was mostly cached, say

    assert predictions(model) == pytest.approx([near_the_ridge(n) for n in SIZES], rel=0.2)


# Milliseconds of vLLM's steps for SmolLM2-135M in float32 on one core, by requests and by tokens
# of each, with some 300 tokens of context each.
TOKENS_EACH = (1, 2, 4, 6, 8, 12, 16)
MEASURED_MS = {
    1: (51, 53, 54, 55, 63, 69, 70),
    2: (55, 55, 64, 65, 71, 79, 91),
    4: (57, 62, 71, 80, 95, 131, 142),
    8: (65, 74, 97, 124, 143, 201, 241),
}


@pytest.mark.parametrize("held_out", TOKENS_EACH)
def test_real_steps_of_a_depth_that_was_never_seen_are_predicted(held_out: int) -> None:
    rng, model = random.Random(0), StepTimeModel()
    cells = [
        (StepLoad(size, size * each, size * 300), ms / 1e3, each)
        for size, row in MEASURED_MS.items()
        for each, ms in zip(TOKENS_EACH, row, strict=True)
    ]
    seen = [cell for cell in cells if cell[2] != held_out]
    for _ in range(1500):
        step, seconds, _each = rng.choice(seen)
        model.observe(step, seconds * math.exp(rng.gauss(0, 0.05)))
    errors = [abs(model.step_s(step) / s - 1) for step, s, each in cells if each == held_out]

    assert np.median(errors) < 0.07
