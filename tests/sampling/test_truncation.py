"""The batched fast path against the same computation row by row, and its draws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from specray.sampling.truncation import (
    BatchSampling,
    Drawn,
    Truncated,
    draw,
    draw_from,
    truncate,
)
from specray.types import SamplingSettings

ALPHA = 1e-4  # chance that an exact sampler fails a test, were its seed not fixed
CPU = torch.device("cpu")


def obvious_distribution(
    logits: NDArray[np.float64], sampling: SamplingSettings, support: int
) -> NDArray[np.float64]:
    """Temperature, top-k, top-p, then the `support` likeliest: dense, [vocab]."""
    order = np.argsort(-logits, kind="stable")
    scaled = logits / (sampling.temperature or 1.0)
    probabilities = np.exp(scaled - scaled.max())
    if sampling.top_k:
        probabilities[order[sampling.top_k :]] = 0
    if not sampling.top_k or sampling.top_k > support:  # the documented simplification
        probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    mass = 0.0
    for rank, token_id in enumerate(order):
        likelier, mass = mass, mass + probabilities[token_id]
        if rank > 0 and likelier >= sampling.top_p:
            probabilities[token_id] = 0
    probabilities[order[support:]] = 0
    return probabilities / probabilities.sum()


rows = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 5, 12, 40]),
    top_p=st.sampled_from([0.05, 0.4, 0.83, 0.97, 1.0]),
)


@given(st.lists(rows, min_size=1, max_size=4), st.integers(0, 10_000), st.integers(1, 50))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_rows_equal_the_obvious_computation(
    batch: list[SamplingSettings], seed: int, support: int
) -> None:
    logits = np.random.default_rng(seed).normal(scale=3, size=(len(batch), 40))
    truncated = truncate(torch.tensor(logits), BatchSampling.of(batch, CPU), support)
    assert truncated.probabilities.dtype == torch.float32
    assert truncated.probabilities.shape == (len(batch), min(support, 40))
    torch.testing.assert_close(truncated.probabilities.sum(dim=1), torch.ones(len(batch)))
    for row, sampling in enumerate(batch):
        dense = np.zeros(40)
        np.add.at(dense, truncated.token_ids[row].numpy(), truncated.probabilities[row].numpy())
        np.testing.assert_allclose(
            dense, obvious_distribution(logits[row], sampling, support), atol=2e-5
        )


def test_the_filter_is_vllms() -> None:
    """vLLM masks tokens whose ascending cumulated mass is at most 1 - top_p, after top-k."""
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(0)) * 2
    sampling = SamplingSettings(temperature=0.8, top_k=15, top_p=0.9)
    ascending, token_ids = (logits / 0.8).sort(dim=1)
    ascending[:, : 40 - 15] = -torch.inf
    ascending[ascending.softmax(dim=1).cumsum(dim=1) <= 1 - 0.9] = -torch.inf
    expected = torch.zeros(1, 40).scatter(1, token_ids, ascending.softmax(dim=1))
    ours = truncate(logits, BatchSampling.of([sampling], CPU), 40)
    dense = torch.zeros(1, 40).scatter_add(1, ours.token_ids, ours.probabilities)
    torch.testing.assert_close(dense, expected)


def test_unused_columns_hold_token_0_with_probability_0() -> None:
    truncated = truncate(
        torch.tensor([[0.0, 9.0, 5.0]]), BatchSampling.of([SamplingSettings(1.0, 1)], CPU), 3
    )
    assert truncated.token_ids.tolist() == [[1, 0, 0]]
    assert truncated.probabilities.tolist() == [[1.0, 0.0, 0.0]]


def test_greedy_rows_take_the_first_of_the_likeliest_tokens() -> None:
    logits = torch.zeros(2, 300)
    logits[:, 100:200] = 1.0
    generator = torch.Generator().manual_seed(0)
    greedy, sampled = SamplingSettings(), SamplingSettings(temperature=1.0)
    alone = draw(logits, BatchSampling.of([greedy, greedy], CPU), 8, generator)
    assert (alone.token_ids.tolist(), alone.distributions) == ([100, 100], None)
    mixed = draw(logits, BatchSampling.of([sampled, greedy], CPU), 8, generator)
    assert mixed.token_ids[1] == 100
    assert mixed.distributions is not None
    assert mixed.token_ids[0] in mixed.distributions.token_ids[0]


def test_columns_are_named_and_unused_ones_stay_0() -> None:
    names = torch.tensor([70, 50, 90])
    greedy = draw(
        torch.tensor([[0.0, 9.0, 5.0]]),
        BatchSampling.of([SamplingSettings()], CPU),
        2,
        torch.Generator(),
    )
    assert greedy.named(names).token_ids.tolist() == [50]
    used = Truncated(torch.tensor([[2, 0]]), torch.tensor([[1.0, 0.0]]))
    named = Drawn(torch.tensor([2]), used).named(names)
    assert named.token_ids.tolist() == [90]
    assert named.distributions is not None
    assert named.distributions.token_ids.tolist() == [[90, 0]]


@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_draws_follow_the_shipped_distribution(top_p: float) -> None:
    logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(3)) * 2
    sampling = SamplingSettings(temperature=1.3, top_p=top_p)
    one = truncate(logits, BatchSampling.of([sampling], CPU), 16)
    many = type(one)(*(part.expand(50_000, -1) for part in one))
    drawn = draw_from(many, torch.Generator().manual_seed(4))
    used = one.probabilities[0] > 0
    counts = np.bincount(drawn.numpy(), minlength=64)[one.token_ids[0][used].numpy()]
    assert counts.sum() == 50_000
    expected = one.probabilities[0][used].double().numpy()
    assert chisquare(counts, 50_000 * expected / expected.sum()).pvalue > ALPHA
