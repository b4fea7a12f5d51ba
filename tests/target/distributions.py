"""Whether sampled tokens have the target's distribution: two chi-square tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tests.target.tiny_model import VOCAB_SIZE, TinyModel

_MIN_EXPECTED = 8.0
_NUM_BINS = 24


@dataclass(frozen=True)
class Filter:
    """Sampling settings as vLLM applies them: temperature, then top-k, then top-p."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __call__(self, p: NDArray[np.float64]) -> NDArray[np.float64]:  # [rows, vocab] both
        p = _normalised(p ** (1 / self.temperature))
        order = np.argsort(-p, axis=1)
        ranked = np.take_along_axis(p, order, axis=1)
        if self.top_k:
            ranked[:, self.top_k :] = 0.0
            ranked = _normalised(ranked)
        mass_before = ranked.cumsum(axis=1) - ranked
        ranked[mass_before >= self.top_p] = 0.0
        np.put_along_axis(p, order, ranked, axis=1)
        return _normalised(p)


class Reference:
    """Exact probabilities of the first tokens after a prompt."""

    def __init__(
        self,
        tiny: TinyModel,
        prompt: Sequence[int],
        allowed: Sequence[int] = range(VOCAB_SIZE),  # no other tokens are in answers
    ) -> None:
        self._tiny = tiny
        self._allowed = np.array(allowed)
        self.prompt = tuple(prompt)

    def conditional(
        self, answers: NDArray[np.int64], position: int, keep: Filter
    ) -> NDArray[np.float64]:
        """The distribution of token `position` of each answer, given those before it."""
        prefixes, where = np.unique(answers[:, :position], axis=0, return_inverse=True)
        return keep(self._after(prefixes))[where]

    @cached_property
    def _all(self) -> list[NDArray[np.float64]]:
        tokens = self._allowed
        first = np.zeros((1, 0), np.int64)
        second = tokens[:, None]
        third = np.stack(np.meshgrid(tokens, tokens, indexing="ij"), axis=-1).reshape(-1, 2)
        return [self._after(prefixes) for prefixes in (first, second, third)]

    def _after(self, prefixes: NDArray[np.int64]) -> NDArray[np.float64]:  # [rows, vocab]
        rows = [[*self.prompt, *prefix] for prefix in prefixes.tolist()]
        p = np.zeros((len(rows), VOCAB_SIZE))
        p[:, self._allowed] = self._tiny.probabilities(rows)[:, self._allowed]
        return _normalised(p)

    def marginals(self, keep: Filter) -> list[NDArray[np.float64]]:  # three times [vocab]
        """The distributions of the first, the second and the third token."""
        first, second, third = (keep(p) for p in self._all)
        joint = first[0][self._allowed, None] * second  # [allowed, vocab]
        return [first[0], joint.sum(axis=0), joint[:, self._allowed].reshape(-1) @ third]


def marginal_p_values(
    answers: NDArray[np.int64], reference: Reference, keep: Filter
) -> list[float]:
    """Chi-square tests of the first, the second and the third token over the whole vocabulary."""
    return [
        chi_square(np.bincount(answers[:, i], minlength=VOCAB_SIZE), p * len(answers))
        for i, p in enumerate(reference.marginals(keep))
    ]


def conditional_p_value(
    answers: NDArray[np.int64],  # [requests, tokens]
    reference: Reference,
    keep: Filter,
    q: NDArray[np.float64],  # [vocab, vocab]: what the draft draws from, by the last token
) -> float:
    """One chi-square test of every token after the first, each given all before it.

    Each token becomes a number that is uniform on [0, 1] if the token has the target's
    conditional distribution: the mass of the tokens in front of it, plus a random part of its
    own. In front stand the tokens that the draft favours most over the target, so that a
    verification that leans towards the draft gives small numbers.
    """
    rng = np.random.default_rng(0)
    numbers = []
    for position in range(1, answers.shape[1]):
        p = reference.conditional(answers, position, keep)
        favour = q[answers[:, position - 1]] / np.maximum(p, 1e-12)
        order = np.argsort(-favour, axis=1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=1)
        rank = (order == answers[:, position, None]).argmax(axis=1)[:, None]
        own = np.take_along_axis(ranked, rank, axis=1)[:, 0]
        before = np.take_along_axis(ranked.cumsum(axis=1), rank, axis=1)[:, 0] - own
        if (own < 1e-9).any():
            return 0.0  # a token that the target's filters exclude
        numbers.append(before + rng.random(len(own)) * own)
    counts, _ = np.histogram(np.concatenate(numbers), _NUM_BINS, (0.0, 1.0))
    return chi_square(counts, np.full(_NUM_BINS, counts.sum() / _NUM_BINS))


def chi_square(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """The p-value of counts; cells that expect little are pooled, impossible ones must be empty."""
    if counts[expected < 1e-9 * counts.sum()].any():
        return 0.0
    is_large = expected >= _MIN_EXPECTED
    rest = expected[~is_large].sum()
    observed, wanted = counts[is_large].astype(float), expected[is_large]
    if rest > 0:
        observed, wanted = np.append(observed, counts[~is_large].sum()), np.append(wanted, rest)
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(stats.chi2.sf(statistic, len(wanted) - 1))


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return weights / weights.sum(axis=1, keepdims=True)
