"""The error probability of each statistical test is 1e-4."""

import numpy as np
import pytest
import torch
import vllm.v1.sample.ops.topk_topp_sampler as upstream
from scipy import stats
from vllm.platforms import current_platform

from specray.target import drawing

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")
NUM_ROWS = 20_000
WEIGHTS = torch.tensor([0.0, 3.0, 0.0, 1.0, 0.5, 0.0, 5.5, 0.0])


def is_drawn_in_proportion(token_ids: torch.Tensor) -> bool:
    counts = np.bincount(token_ids.numpy(), minlength=len(WEIGHTS))
    assert (counts[WEIGHTS == 0] == 0).all()
    expected = len(token_ids) * (WEIGHTS / WEIGHTS.sum()).numpy()
    return bool(stats.chisquare(counts[WEIGHTS > 0], expected[WEIGHTS > 0]).pvalue > 1e-4)


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(3)])
def test_tokens_are_drawn_in_proportion_to_their_weights(generator: torch.Generator | None) -> None:
    torch.manual_seed(1)
    assert is_drawn_in_proportion(drawing.draw(WEIGHTS.repeat(NUM_ROWS, 1), generator))


def test_logits_are_drawn_by_their_softmax() -> None:
    torch.manual_seed(2)
    logits = WEIGHTS.log().repeat(NUM_ROWS, 1) + torch.arange(NUM_ROWS)[:, None] % 7
    assert is_drawn_in_proportion(drawing.draw_from_logits(logits))


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-53, 1.0])
def test_rounding_draws_no_token_without_weight(
    number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch, "rand", lambda shape, **_: torch.full(shape, number, dtype=torch.float64)
    )
    assert drawing.draw(WEIGHTS.unsqueeze(0)).tolist() == [1 if number == 0 else 6]


def test_sampling_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "compiled_random_sample", upstream.compiled_random_sample)
    drawing.install()
    torch.manual_seed(4)
    sampler = upstream.TopKTopPSampler()
    token_ids, _ = sampler.forward_cpu(WEIGHTS.log().repeat(NUM_ROWS, 1), {}, None, None)
    assert upstream.compiled_random_sample is drawing.draw_from_logits
    assert is_drawn_in_proportion(token_ids)
