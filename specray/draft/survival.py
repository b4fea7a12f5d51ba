"""How likely a looked-up token is to be the target's, learnt from what the target said."""

from collections.abc import Iterable
from typing import NamedTuple

from specray.control.acceptance import AcceptanceRate
from specray.draft.ngram_index import Guess
from specray.types import SamplingSettings

Rates = tuple[float, ...]
"""Acceptance by match length, from 1 on; what is longer counts as the last."""


class Priors(NamedTuple):
    """Where learning starts: measured on answers of SmolLM2-135M-Instruct, rounded."""

    greedy: Rates
    sampled: Rates  # at temperature 1


OWN_TEXT = Priors(
    greedy=(0.25, 0.50, 0.65, 0.75, 0.80, 0.82, 0.85, 0.93),
    sampled=(0.15, 0.35, 0.50, 0.65, 0.70, 0.72, 0.75, 0.80),
)
EARLIER_ANSWERS = Priors(
    greedy=(0.12, 0.30, 0.40, 0.45, 0.45, 0.45, 0.45, 0.45),
    sampled=(0.10, 0.18, 0.22, 0.35, 0.35, 0.35, 0.35, 0.35),
)

_CLEAR_SHARE = 0.7  # of what followed a suffix: such a guess is unambiguous
_TORN = 0.6  # of the rate of a clear one
_FORGETTING = 0.999
_PRIOR_STRENGTH = 20.0  # tokens
_STEPS_PER_DEGREE = 4  # temperatures are told apart by quarters
_HOTTEST = 8
_GREEDY = -1


class SurvivalTable:
    """Acceptance rates of guesses by match length and share.

    Every token of an answer teaches, whether it was drafted or not: it either is what a look-up
    would have guessed or isn't. For a point mass that is the chance to be accepted, for sampled
    requests too.
    """

    def __init__(self, priors: Rates) -> None:
        self._priors = priors
        self._rates: dict[tuple[int, bool], AcceptanceRate] = {}

    def observe(self, guess: Guess, token_id: int) -> None:
        """Learns from the token that came where `guess` would have been proposed."""
        key = self._key(guess)
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = AcceptanceRate(_FORGETTING, _PRIOR_STRENGTH)
        rate.observe(1, int(guess.token_id == token_id))

    def rate(self, guess: Guess) -> float:
        """Probability that the guess is accepted, given that all before it were."""
        length, is_clear = key = self._key(guess)
        prior = self._priors[length - 1] * (1.0 if is_clear else _TORN)
        rate = self._rates.get(key)
        return prior if rate is None else rate.rate(prior)

    def _key(self, guess: Guess) -> tuple[int, bool]:
        return min(guess.match_length, len(self._priors)), guess.share >= _CLEAR_SHARE


class Survival:
    """One table for greedy requests and one per quarter degree of temperature."""

    def __init__(self, priors: Priors) -> None:
        self._priors = priors
        self._tables: dict[int, SurvivalTable] = {}

    def table(self, sampling: SamplingSettings) -> SurvivalTable:
        """The table for requests that are sampled so."""
        if sampling.is_greedy:
            return self._tables.setdefault(_GREEDY, SurvivalTable(self._priors.greedy))
        degree = min(round(_STEPS_PER_DEGREE * sampling.temperature), _HOTTEST)
        return self._tables.setdefault(degree, SurvivalTable(self._priors.sampled))


def expected_length(rates: Iterable[float]) -> float:
    """Tokens of a chain that will be accepted, on average.

    Args:
        rates: of each token, given that all before it were accepted.
    """
    length, survival = 0.0, 1.0
    for rate in rates:
        survival *= rate
        length += survival
    return length
