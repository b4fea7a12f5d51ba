"""Chains of tokens from an n-gram model.

Exactness. How many tokens a chain has depends, for each, on those before it: it ends where the
table knows nothing more.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.models.ngrams import NgramModel, Opinion
from specray.types import SamplingSettings, TruncatedDistributions

_MOST_CANDIDATES = 32  # for one place


class Chain(NamedTuple):
    """Drafted tokens."""

    token_ids: list[int]
    distributions: TruncatedDistributions | None  # what they were drawn from, if they were
    confidences: list[float]  # of each token otherwise


class _Shipped(NamedTuple):
    token_ids: NDArray[np.int64]  # [support], most likely first
    probabilities: NDArray[np.float32]  # [support], together 1


class NgramDrawing:
    """Draws from a table."""

    def __init__(self, ngrams: NgramModel, rng: np.random.Generator) -> None:
        """Takes the table and its randomness."""
        self._ngrams = ngrams
        self._rng = rng

    def draft(self, text: Sequence[int], depth: int, sampling: SamplingSettings) -> Chain:
        """What usually follows a text; drawn, for sampled requests, from what is shipped."""
        if sampling.is_greedy:
            chain = list(islice(self._ngrams.chain(text), depth))
            return Chain([token_id for token_id, _ in chain], None, [share for _, share in chain])
        context = list(text[-self._ngrams.context_size :])
        drafted: list[int] = []
        rows: list[_Shipped] = []
        for _ in range(depth):
            row = self._row(context, sampling)
            if row is None:
                break
            rows.append(row)
            drafted.append(self._draw(row))
            context = [*context, drafted[-1]]
        return Chain(drafted, _stack(rows) if rows else None, [])

    def candidates(
        self, text: Sequence[int], proposed: Sequence[int], sampling: SamplingSettings
    ) -> TruncatedDistributions:
        """What may stand in each place of a proposal, and behind it: [proposed + 1, support].

        For greedy requests too, as what comes second counts for what may be added. It ends where
        the table knows nothing more.
        """
        if sampling.is_greedy:
            sampling = replace(sampling, temperature=1.0, top_k=0, top_p=1.0)
        context = [*text[-self._ngrams.context_size :], *proposed]
        rows = []
        for end in range(len(context) - len(proposed), len(context) + 1):
            row = self._row(context[:end], sampling)
            if row is None:
                break
            token_ids, probabilities = row
            rows.append(_Shipped(token_ids[:_MOST_CANDIDATES], probabilities[:_MOST_CANDIDATES]))
        return _stack(rows)

    def _row(self, context: Sequence[int], sampling: SamplingSettings) -> _Shipped | None:
        opinion = self._ngrams.opinion(context)
        if opinion is None or not len(opinion.token_ids):
            return None
        return _filter(opinion, sampling)

    def _draw(self, row: _Shipped) -> int:
        below = row.probabilities.astype(np.float64).cumsum()
        place = below.searchsorted(self._rng.random() * below[-1], side="right")
        return int(row.token_ids[place])


def _filter(opinion: Opinion, sampling: SamplingSettings) -> _Shipped:
    """Temperature, top-k and top-p, as in `sampling.truncation`."""
    to_largest = opinion.probabilities.astype(np.float64) / opinion.probabilities[0]
    weights = to_largest ** (1 / sampling.temperature)  # the first stays 1, however cold it is
    if sampling.top_k:
        weights = weights[: sampling.top_k]
    weights /= weights.sum()
    num_kept = max(1, int((weights.cumsum() - weights < sampling.top_p).sum()))
    weights = weights[:num_kept] / weights[:num_kept].sum()
    return _Shipped(opinion.token_ids[:num_kept], weights.astype(np.float32))


def _stack(rows: Sequence[_Shipped]) -> TruncatedDistributions:
    support = max((len(row.token_ids) for row in rows), default=1)
    token_ids = np.zeros((len(rows), support), np.int32)
    probabilities = np.zeros((len(rows), support), np.float32)
    for place, row in enumerate(rows):
        token_ids[place, : len(row.token_ids)] = row.token_ids
        probabilities[place, : len(row.token_ids)] = row.probabilities
    return TruncatedDistributions(token_ids, probabilities)
