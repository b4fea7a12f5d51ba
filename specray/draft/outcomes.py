"""How a verification is likely to end: so many tokens accepted, and which one added.

Learnt from what commits do. A token's chance to be accepted comes from the probability that the
draft gave it, and the added token's from the share that the draft gave it among the others; both
are frequencies by bucket, because a small draft is surer than it is right.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specray.draft.temperatures import temperature_class
from specray.types import SamplingSettings, TruncatedDistributions

Floats = NDArray[np.floating[Any]]
Outcome = tuple[int, int]
"""The length of a request after a commit, and its last token."""

_NUM_CONFIDENCES = 10  # buckets of a token's probability, all as wide
_NUM_SHARES = 12  # buckets of a share: 1 to 1/2, 1/2 to 1/4, ...; the last takes the rest
_PRIOR_STRENGTH = 8.0  # observations that a prior counts for
_FORGETTING = 0.999  # per observation of a bucket


@dataclass(slots=True, eq=False)
class InFlight:
    """A proposal that the target has, or will have, until its commit comes.

    It may be empty: then the target decodes a token by itself.
    """

    token_ids: tuple[int, ...]
    candidates: TruncatedDistributions  # [at most one more, support]: what may stand where, so far
    was_ahead: bool  # whether it was sent before the commit that it extends was known

    @property
    def has_bonus(self) -> bool:
        """Whether the candidates for what follows the last token are known."""
        return len(self.candidates) > len(self.token_ids)


class _Frequencies:
    """How often something happened, by bucket; of a rare one the prior goes on counting."""

    def __init__(self, priors: Floats) -> None:
        self._expected = priors * _PRIOR_STRENGTH
        self._happened = np.zeros(len(priors))
        self._tried = np.zeros(len(priors))
        self.rates = priors

    def observe(self, tried: Floats, happened: Floats) -> None:
        """Learns counts by bucket; those without any forget nothing."""
        kept = np.where(tried > 0, _FORGETTING, 1.0)
        self._tried = self._tried * kept + tried
        self._happened = self._happened * kept + happened
        self.rates = (self._happened + self._expected) / (self._tried + _PRIOR_STRENGTH)


class _Tables:
    """What is known of the requests that are sampled alike."""

    def __init__(self) -> None:
        confidences = (np.arange(_NUM_CONFIDENCES) + 0.5) / _NUM_CONFIDENCES
        shares = 0.75 * 0.5 ** np.arange(_NUM_SHARES)  # each bucket's middle
        self.any_survival = _Frequencies(np.array([0.5]))  # whatever the draft's confidence
        self.survival = _Frequencies(0.1 + 0.8 * confidences)
        self.correction = _Frequencies(0.8 * shares)
        self.bonus = _Frequencies(0.8 * shares)


class OutcomeModel:
    """The probabilities of a verification's outcomes."""

    def __init__(self) -> None:
        self._tables: dict[int, _Tables] = defaultdict(_Tables)

    def survival_rate(self, sampling: SamplingSettings) -> float:
        """How often a proposed token is accepted that all before it were."""
        return float(self._table(sampling).any_survival.rates[0])

    def probabilities(
        self, flight: InFlight, sampling: SamplingSettings, verified_rate: float
    ) -> Floats:
        """Of each candidate to be added after so many accepted tokens: [candidates, support].

        The proposed tokens themselves are 0: what is proposed behind them has been sent.

        Args:
            flight: What may be verified.
            sampling: How the target samples.
            verified_rate: How often such a proposal is there when its step begins.
        """
        tables = self._table(sampling)
        probabilities = np.zeros(flight.candidates.probabilities.shape)
        reached = 1.0
        for row, (ids, q) in enumerate(
            zip(flight.candidates.token_ids, flight.candidates.probabilities, strict=True)
        ):
            if row == len(flight.token_ids):
                probabilities[row] = reached * _rated(tables.bonus, q)
                break
            confidence, shares = _without(flight.token_ids[row], ids, q)
            survival = float(tables.survival.rates[_confidence_bucket(confidence)])
            probabilities[row] = reached * (1 - survival) * _rated(tables.correction, shares)
            # Without verification the first token is replaced alike, and none is accepted.
            reached *= survival
            if row == 0:
                reached *= verified_rate
        return probabilities

    def reach(self, flight: InFlight, sampling: SamplingSettings, verified_rate: float) -> float:
        """The probability that the whole proposal is accepted; see `probabilities`."""
        tables, reached = self._table(sampling), 1.0
        for token_id, ids, q in zip(
            flight.token_ids,
            flight.candidates.token_ids,
            flight.candidates.probabilities,
            strict=False,
        ):
            confidence, _ = _without(token_id, ids, q)
            reached *= float(tables.survival.rates[_confidence_bucket(confidence)])
        if flight.token_ids:
            reached *= verified_rate
        return reached

    def observe(
        self,
        flight: InFlight,
        committed: Sequence[int],
        sampling: SamplingSettings,
    ) -> None:
        """Learns from a commit that agrees with the proposal, but for its last token.

        It may go on where the proposal and one more token end; of that nothing is learnt.
        """
        tables = self._table(sampling)
        for row, token_id in enumerate(committed[: len(flight.candidates)]):
            ids, q = flight.candidates.token_ids[row], flight.candidates.probabilities[row]
            if row == len(flight.token_ids):
                _observe_share(tables.bonus, ids, q, token_id)
                break
            proposed = flight.token_ids[row]
            confidence, shares = _without(proposed, ids, q)
            tried = np.zeros(_NUM_CONFIDENCES)
            tried[_confidence_bucket(confidence)] = 1
            tables.any_survival.observe(np.ones(1), np.array([float(token_id == proposed)]))
            tables.survival.observe(tried, tried * (token_id == proposed))
            if token_id != proposed:
                _observe_share(tables.correction, ids, shares, token_id)

    def _table(self, sampling: SamplingSettings) -> _Tables:
        return self._tables[temperature_class(sampling)]


def _without(token_id: int, ids: NDArray[np.int32], q: Floats) -> tuple[float, Floats]:
    """A token's probability, and what the others share when it is not taken."""
    is_it = (ids == token_id) & (q > 0)
    others = np.where(is_it, 0.0, q)
    return float(q[is_it].sum()), others / max(float(others.sum()), 1e-9)


def _confidence_bucket(confidence: float) -> int:
    return min(int(confidence * _NUM_CONFIDENCES), _NUM_CONFIDENCES - 1)


def _share_buckets(shares: Floats) -> NDArray[np.int64]:
    halvings = -np.log2(np.clip(shares, 2.0**-_NUM_SHARES, 1.0))
    return np.minimum(halvings.astype(np.int64), _NUM_SHARES - 1)


def _rated(frequencies: _Frequencies, shares: Floats) -> Floats:
    """Of each candidate; one is added, so that all together are no more than 1.

    Frequencies by bucket may say more: of many that are the least likely of theirs.
    """
    rates = np.where(shares > 0, frequencies.rates[_share_buckets(shares)], 0.0)
    return rates / max(1.0, float(rates.sum()))


def _observe_share(
    frequencies: _Frequencies, ids: NDArray[np.int32], shares: Floats, token_id: int
) -> None:
    buckets, is_used = _share_buckets(shares), shares > 0
    tried = np.bincount(buckets[is_used], minlength=_NUM_SHARES)
    happened = np.bincount(buckets[is_used & (ids == token_id)], minlength=_NUM_SHARES)
    frequencies.observe(tried.astype(float), happened.astype(float))
