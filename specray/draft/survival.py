"""How likely a looked-up token is to be the target's, learnt from what the target said."""

from typing import NamedTuple

from specray.control.acceptance import AcceptanceRate
from specray.draft.ngram_index import Guess
from specray.draft.temperatures import temperature_class
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


class SurvivalTable:
    """Acceptance rates of guesses by match length and share.

    Every token of an answer teaches, whether it was drafted or not: it either is what a look-up
    would have guessed or isn't. For a point mass that is the chance to be accepted, for sampled
    requests too.
    """

    def __init__(self, priors: Rates) -> None:
        self._longest = len(priors)
        # Entry 2 * length - 1 is for clear guesses, the one before for those among others.
        self._priors = [prior * part for prior in priors for part in (_TORN, 1.0)]
        self._learnt = [AcceptanceRate(_FORGETTING, _PRIOR_STRENGTH) for _ in self._priors]
        self._rates = list(self._priors)

    def observe(self, guess: Guess, is_right: bool) -> None:
        """Learns whether the token that came is the one that would have been proposed."""
        entry = self._entry(guess)
        self._learnt[entry].observe(1, int(is_right))
        self._rates[entry] = self._learnt[entry].rate(self._priors[entry])

    def rates(self, guess: Guess, depth: int) -> list[float]:
        """Chance of each token of a copy to be accepted, given that all before it were.

        With each token that is accepted the match is one longer.
        """
        entry = self._entry(guess)
        rates = self._rates[entry::2][:depth]
        return rates + rates[-1:] * (depth - len(rates))

    def _entry(self, guess: Guess) -> int:
        length = min(guess.match_length, self._longest)
        return 2 * length - 1 if guess.share >= _CLEAR_SHARE else 2 * length - 2


class Survival:
    """One table for greedy requests and one per quarter degree of temperature."""

    def __init__(self, priors: Priors) -> None:
        self._priors = priors
        self._tables: dict[int, SurvivalTable] = {}

    def table(self, sampling: SamplingSettings) -> SurvivalTable:
        """The table for requests that are sampled so."""
        number = temperature_class(sampling)
        if number not in self._tables:
            rates = self._priors.greedy if sampling.is_greedy else self._priors.sampled
            self._tables[number] = SurvivalTable(rates)
        return self._tables[number]
