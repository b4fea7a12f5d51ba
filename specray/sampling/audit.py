"""Are a source's tokens really drawn from the distributions it ships?

Rejection sampling is exact only if they are, and nothing in one proposal shows it. Over many
tokens it shows: for any score f fixed before the draw, f(token) - E_q[f] has mean zero given the
past, so betting on its sign can't make money. A source whose wealth grows is caught. By Ville's
inequality an honest source is ever caught with probability at most 1 / threshold, however long
it is watched (Shafer & Vovk, "Game-Theoretic Foundations for Probability and Finance").

Bets on an honest source lose, so that one which begins to lie after millions of honest tokens would
have to win all of that back. Therefore the bets are also begun anew, every few thousand and every
few hundred thousand tokens, and the bound on false alarms is divided among all beginnings.
"""

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specray.types import TruncatedDistributions

_BETS = np.array([-0.9, -0.4, -0.1, 0.1, 0.4, 0.9])
_NUM_SECRET_SCORES = 4
_EPOCHS = np.array([2**12, 2**18, np.inf])  # tokens after which wealth begins anew


class SecretScores:
    """Random numbers per token id that no draft knows; several audits may share them."""

    def __init__(self, vocab_size: int, rng: np.random.Generator) -> None:
        self._rng, self._vocab_size = rng, vocab_size

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """[scores, vocab]; drawn when the first distribution comes, as many services see none."""
        return self._rng.random((_NUM_SECRET_SCORES, self._vocab_size))


class DistributionAudit:
    """An anytime-valid test of one source, by wealth averaged over scores and bets.

    Scores: a few secret random ones per token id, which a lie about *which* tokens shifts, and
    the token's own probability, which a lie about *how sharp* the distribution is shifts.

    What may be observed: every token of a proposal, or a prefix whose length does not depend on
    the tokens beyond it or on the last one in it. Never only the accepted tokens.
    """

    def __init__(self, scores: SecretScores, max_false_alarm: float = 1e-6) -> None:
        self._scores = scores
        # [epochs, bets, scores + 1]
        self._log_wealth = np.zeros((len(_EPOCHS), len(_BETS), _NUM_SECRET_SCORES + 1))
        self._num_tokens = np.zeros(len(_EPOCHS))  # since each began
        self._num_begun = np.ones(len(_EPOCHS))
        self._log_threshold = -math.log(max_false_alarm)
        self._is_caught = False

    @property
    def is_caught(self) -> bool:
        """Whether the source has been shown to lie; stays so."""
        return self._is_caught

    @property
    def log_wealth(self) -> float:
        """Logarithm of the evidence against the source; below 0 there is none.

        The k-th of the beginnings of each length counts for 6 / (pi k)^2 of its share, which add up
        to 1.
        """
        peaks = self._log_wealth.max(axis=(1, 2))
        means = np.exp(self._log_wealth - peaks[:, None, None]).mean(axis=(1, 2))
        shares = 6 / (math.pi * self._num_begun) ** 2 / len(_EPOCHS)
        return float((peaks + np.log(means) + np.log(shares)).max())

    def observe(
        self, token_ids: NDArray[np.integer], distributions: TruncatedDistributions
    ) -> None:
        """Takes the tokens [depth] of a proposal; all ids must lie within the vocabulary."""
        ids, probabilities = distributions.token_ids, distributions.probabilities.astype(float)
        if self._is_caught or not len(token_ids):
            return
        q = probabilities / probabilities.sum(axis=1, keepdims=True)
        of_token = (q * (ids == token_ids[:, None])).sum(axis=1)  # [depth]
        if not of_token.all():
            self._is_caught = True  # no honest draw has probability zero
            return
        surprise = np.empty((_NUM_SECRET_SCORES + 1, len(token_ids)))  # in [-1, 1]
        secret = self._scores.table
        expected = np.einsum("sdm,dm->sd", secret[:, ids], q)
        surprise[:-1] = secret[:, token_ids] - expected
        surprise[-1] = of_token - (q * q).sum(axis=1)
        self._log_wealth += np.log1p(_BETS[:, None, None] * surprise).sum(axis=2)
        self._is_caught = self.log_wealth >= self._log_threshold
        self._num_tokens += len(token_ids)
        is_over = self._num_tokens >= _EPOCHS
        self._log_wealth[is_over] = self._num_tokens[is_over] = 0.0
        self._num_begun += is_over
