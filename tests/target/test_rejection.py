"""The error probability of each statistical test is 1e-4."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.v1.sample.rejection_sampler as upstream
from scipy import stats
from torch import Tensor
from vllm.platforms import current_platform

from specray.target import rejection

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")
P = torch.tensor([[0.4, 0.3, 0.2, 0.1, 0.0], [0.05, 0.05, 0.1, 0.3, 0.5]])
Q = torch.tensor([[0.1, 0.6, 0.0, 0.2, 0.1], [0.3, 0.0, 0.3, 0.2, 0.2]])
BONUS = 4
NUM_REQUESTS = 12_000


def settings(temperatures: list[float], generators: dict[int, Any] | None = None) -> Any:
    return SimpleNamespace(
        all_greedy=not any(temperatures),
        all_random=all(temperatures),
        temperature=torch.tensor(temperatures),
        generators=generators or {},
    )


def sample(
    drafts: list[list[int]],
    p: Tensor,
    q: Tensor | None,
    sampling: Any,
) -> list[list[int]]:
    """Accepted and added tokens of each request; p and q are [places, vocab] of all together."""
    depths = [len(tokens) for tokens in drafts]
    output = rejection.rejection_sample(
        torch.tensor([token for tokens in drafts for token in tokens], dtype=torch.int32),
        depths,
        max(depths),
        torch.tensor(depths, dtype=torch.int32).cumsum(0, dtype=torch.int32),
        q,
        p.log(),
        torch.full((len(drafts), 1), BONUS, dtype=torch.int32),
        sampling,
    )
    assert output.shape == (len(drafts), max(depths) + 1)
    assert output.dtype == torch.int32
    return [[token for token in row if token >= 0] for row in output.tolist()]


def is_drawn_from(tokens: list[int], p: Tensor) -> bool:
    counts = np.bincount(tokens, minlength=len(p))
    expected = len(tokens) * (p.double() / p.double().sum()).numpy()
    assert (counts[expected == 0] == 0).all()
    used = expected > 0
    return bool(stats.chisquare(counts[used], expected[used]).pvalue > 1e-4)


@pytest.mark.parametrize("is_seeded", [False, True])
@pytest.mark.parametrize("has_distributions", [True, False])
def test_each_token_has_the_targets_distribution(has_distributions: bool, is_seeded: bool) -> None:
    torch.manual_seed(1)
    rng = np.random.default_rng(2)
    num_requests = NUM_REQUESTS // 4 if is_seeded else NUM_REQUESTS  # generators take their time
    q = (Q.double() / Q.double().sum(1, keepdim=True)).numpy()
    drafts = np.stack([rng.choice(5, num_requests, p=row) for row in q], axis=1).tolist()
    if not has_distributions:  # a fixed guess
        drafts = [[1, 3]] * num_requests
    generators = {i: torch.Generator().manual_seed(i) for i in range(num_requests)}
    outputs = sample(
        drafts,
        P.repeat(num_requests, 1),
        Q.repeat(num_requests, 1) if has_distributions else None,
        settings([1.0] * num_requests, generators if is_seeded else None),
    )
    assert is_drawn_from([tokens[0] for tokens in outputs], P[0])
    assert is_drawn_from([tokens[1] for tokens in outputs if len(tokens) > 1], P[1])
    whole = [tokens for tokens in outputs if len(tokens) == 3]
    assert whole
    assert all(tokens[2] == BONUS for tokens in whole)
    for tokens, draft in zip(outputs, drafts, strict=True):
        assert tokens[: len(tokens) - 1] == draft[: len(tokens) - 1]


def test_greedy_requests_beside_sampled_ones_get_the_likeliest_tokens() -> None:
    drafts = [[0, 4], [0, 1], [2, 4], []]
    p = P.repeat(3, 1)
    outputs = sample(drafts, p, None, settings([0.0, 0.0, 0.0, 1.0]))
    assert outputs == [[0, 4, BONUS], [0, 4], [0], [BONUS]]


def test_a_seed_decides_alone() -> None:
    def draw(others: int) -> list[int]:
        torch.manual_seed(others)
        drafts = [[1, 3]] * (others + 1)
        generators = {others: torch.Generator().manual_seed(7)}
        sampling = settings([1.0] * (others + 1), generators)
        return sample(drafts, P.repeat(others + 1, 1), None, sampling)[others]

    assert draw(0) == draw(3) == draw(9)


def test_where_draft_and_target_agree_all_is_accepted() -> None:
    drafts = [[0, 3]] * 200
    outputs = sample(drafts, P.repeat(200, 1), P.repeat(200, 1), settings([1.0] * 200))
    assert all(tokens == [0, 3, BONUS] for tokens in outputs)


def test_a_token_that_the_draft_gives_no_chance_is_rejected() -> None:
    outputs = sample([[2]] * 300, P[:1].repeat(300, 1), Q[:1].repeat(300, 1), settings([1.0] * 300))
    assert all(len(tokens) == 1 for tokens in outputs)
    assert {tokens[0] for tokens in outputs} <= {0, 2}  # where p lies above q


def test_greedy_batches_are_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    left = torch.tensor([[0, 4, BONUS], [0, 4, -1]], dtype=torch.int32)
    monkeypatch.setattr(rejection, "_upstream_rejection_sample", lambda *_, **__: left)
    drafts = [[0, 4], [0, 1]]
    assert sample(drafts, P.repeat(2, 1), None, settings([0.0, 0.0])) == [[0, 4, BONUS], [0, 4]]


def test_the_verification_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "rejection_sample", upstream.rejection_sample)
    rejection.install()
    assert upstream.rejection_sample is rejection.rejection_sample
