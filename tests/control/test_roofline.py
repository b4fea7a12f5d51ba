from dataclasses import replace

import numpy as np
import pytest

from specray.control.hardware import PROFILES, HardwareProfile
from specray.control.roofline import ModelShape, Roofline, StepLoad, Window

LLAMA_70B = ModelShape(
    num_active_parameters=70.6e9,
    weight_bytes=141.2e9,
    kv_bytes_per_token=327_680,
    num_layers=80,
    hidden_size=8192,
)
ROUND = HardwareProfile("round", 1e12, {"bfloat16": 1e14}, 1e11, link_latency_s=1e-5)
SMALL = ModelShape(1e9, 2e9, 1e5, num_layers=10, hidden_size=1000)


def test_a_small_batch_reads_weights_and_kv() -> None:
    assert Roofline(SMALL, ROUND).step_s(StepLoad(1, 1, 1000)) == pytest.approx(2.1e-3)


def test_a_large_batch_computes() -> None:
    seconds = Roofline(SMALL, ROUND).step_s(StepLoad(1000, 1000, 0))

    assert seconds == pytest.approx(2e9 * 1000 / 1e14)


def test_attention_counts_each_token_with_its_own_context() -> None:
    roofline = Roofline(replace(SMALL, kv_bytes_per_token=10), ROUND)
    near = roofline.step_s(StepLoad(1000, 1000, 0))
    far = roofline.step_s(StepLoad(1000, 1000, 500 * 1000))

    assert far - near == pytest.approx(4 * 10 * 1000 * 1000 * 500 / 1e14)


def test_layers_with_a_window_read_no_more_than_that() -> None:
    """Eight of ten layers: half of what a token's keys and values take is theirs."""
    window = Window(num_layers=8, num_tokens=100, kv_bytes_per_token=1e5)
    model = replace(SMALL, windows=(window,))
    roofline = Roofline(model, ROUND)

    assert roofline.step_s(StepLoad(10, 10, 500)) == pytest.approx((2e9 + 2e5 * 500) / 1e12)
    assert roofline.step_s(StepLoad(10, 10, 5000)) == pytest.approx(
        (2e9 + 1e5 * 5000 + 1e5 * 10 * 100) / 1e12
    )
    near, far = (model.attention_flops(num_tokens) for num_tokens in (100, 400))
    assert near == 4 * 1000 * 10 * 100
    assert far - near == 4 * 1000 * 2 * 300


def test_ranks_share_the_work_and_pay_for_talking() -> None:
    one = Roofline(SMALL, ROUND).step_s(StepLoad(1, 4, 0))
    two = Roofline(SMALL, ROUND, num_ranks=2).step_s(StepLoad(1, 4, 0))

    assert two - one / 2 == pytest.approx(2 * 10 * (1e-5 + 4 * 1000 * 2 / 1e11))


def test_overhead_and_efficiency() -> None:
    slow = Roofline(SMALL, ROUND, overhead_s=1e-3, efficiency=0.5)

    assert slow.step_s(StepLoad(1, 1, 0)) == pytest.approx(1e-3 + 4e-3)


def test_seconds_are_convex_in_the_draft_tokens() -> None:
    load = StepLoad(64, 64, 64 * 2000)
    roofline = Roofline(LLAMA_70B, PROFILES["H100"], num_ranks=4)
    seconds = roofline.predict(load, np.arange(1000.0))

    costs = np.diff(seconds)
    assert (costs > 0).all()
    assert (np.diff(costs) > -1e-12).all()


def test_the_side_changes_at_the_ridge() -> None:
    roofline = Roofline(SMALL, ROUND)

    few, many = roofline.intensity(StepLoad(50, 50, 0)), roofline.intensity(StepLoad(150, 150, 0))

    assert few.ridge == many.ridge == pytest.approx(100)
    assert few.flops_per_byte < few.ridge < many.flops_per_byte
    assert few.flops_per_byte == pytest.approx(50)


def test_a_70b_decodes_alone_in_about_what_its_weights_take() -> None:
    roofline = Roofline(LLAMA_70B, PROFILES["H100"], num_ranks=4)

    assert 0.0105 < roofline.step_s(StepLoad(1, 1, 1000)) < 0.0135


def test_a_mixture_reads_the_experts_that_its_tokens_are_likely_to_choose() -> None:
    mixture = replace(SMALL, expert_bytes=1.6e9, idle_share=6 / 8)
    roofline = Roofline(mixture, ROUND)
    rng = np.random.default_rng(4)

    for num_tokens in (1, 2, 5, 16):
        choices = [  # of 2 among 8 by each token of a step
            len({e for _ in range(num_tokens) for e in rng.choice(8, 2, replace=False)})
            for _ in range(2000)
        ]
        read = 0.4e9 + 1.6e9 * np.mean(choices) / 8
        seconds = roofline.step_s(StepLoad(num_tokens, num_tokens, 0))
        # The mean of 2,000 draws is off by more than 1 % with a probability below 1e-4.
        assert seconds == pytest.approx(read / 1e12, rel=0.01)


def test_a_mixture_is_bound_by_memory_for_longer() -> None:
    mixture = replace(SMALL, num_active_parameters=2e8, expert_bytes=1.6e9, idle_share=7 / 8)
    load = StepLoad(200, 200, 0)

    dense, sparse = Roofline(SMALL, ROUND).intensity(load), Roofline(mixture, ROUND).intensity(load)
    assert dense.flops_per_byte > dense.ridge
    assert sparse.flops_per_byte < sparse.ridge
    few, many = (Roofline(mixture, ROUND).intensity(StepLoad(n, n, 0)) for n in (1, 10))
    assert few.flops_per_byte == pytest.approx(2 * 2e8 / (0.4e9 + 0.2e9))
    assert many.flops_per_byte < 10 * few.flops_per_byte  # ten tokens choose more experts


def test_a_mixture_s_first_draft_tokens_cost_the_most() -> None:
    mixture = replace(SMALL, expert_bytes=1.6e9, idle_share=7 / 8)
    seconds = Roofline(mixture, ROUND).predict(StepLoad(1, 1, 0), np.arange(30.0))

    costs = np.diff(seconds)
    assert costs[0] > 3 * costs[10] > 0
    assert seconds[-1] == pytest.approx(2e9 / 1e12, rel=0.02)  # all experts


def test_a_step_without_tokens_or_with_some_of_a_prompt_does_not_only_decode() -> None:
    assert StepLoad(2, 5, 100).is_decode_only
    assert not StepLoad(2, 5, 100, num_prefill_tokens=4).is_decode_only
    assert not StepLoad(0, 0, 0).is_decode_only
