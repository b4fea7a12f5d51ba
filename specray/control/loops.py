"""The loops of planning that each step runs, compiled by numba as the first planner is made.

For a few requests numpy takes far longer for its calls than for what they compute.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

Array = Any  # of numpy, where numba compiles the loops for it
Reals = NDArray[np.float64]
Integers = NDArray[np.intp]
Judge = Callable[[Integers, Reals, Reals, Reals, Integers, Reals, Reals, Reals], None]
Take = Callable[[Reals, Integers, Reals, float, float, float, Integers], tuple[int, float]]

NUM_FEATURES: Final = 5  # bias, logits of rate and confidence, logarithm of place, temperature
UNKNOWN: Final = -1.0  # a confidence
_LEAST, _MOST = 0.02, 0.98  # of any rate or confidence: nothing is certain

_Integers, _Reals = types.int64[::1], types.float64[::1]
_Table, _Tables = types.float64[:, ::1], types.float64[:, :, ::1]


@numba.njit
def _logit(chance: float) -> float:
    bounded = min(max(chance, _LEAST), _MOST)
    return math.log(bounded / (1 - bounded))


@cache
def judging() -> Judge:
    """Compiles the logistic regression of `SurvivalModel`.

    What is returned takes

        depths: [requests] int64: of chains; what lies beyond has survival 0.
        rates: [requests]: the requests' acceptance rates.
        temperatures: [requests].
        confidences: [requests, places], or `UNKNOWN`.
        heads: [requests] int64: whose coefficients judge them.
        coefficients: [heads, features].
        features: [requests, places, features], overwritten.
        survivals: [requests, places], overwritten.
    """
    vectors, tables = (_Integers, _Reals, _Reals), (_Tables, _Table)

    @numba.njit(types.void(*vectors, _Table, _Integers, _Table, *tables), error_model="numpy")
    def judge(
        depths: Array,
        rates: Array,
        temperatures: Array,
        confidences: Array,
        heads: Array,
        coefficients: Array,
        features: Array,
        survivals: Array,
    ) -> None:
        for row in range(len(depths)):
            rate, survival = _logit(rates[row]), 1.0
            for place in range(survivals.shape[1]):
                confidence = confidences[row, place]
                feature = features[row, place]
                feature[0], feature[1], feature[2] = 1.0, rate, math.log(place + 1)
                feature[3] = temperatures[row]
                feature[4] = _logit(confidence) if confidence != UNKNOWN else 0.0
                logit = 0.0
                for i in range(NUM_FEATURES):
                    logit += feature[i] * coefficients[heads[row], i]
                survival = survival / (1 + math.exp(-logit)) if place < depths[row] else 0.0
                survivals[row, place] = survival

    compiled: Judge = judge
    return compiled


@cache
def taking() -> Take:
    """Compiles the choice of `plan_depths`.

    What is returned takes

        survivals: [requests, places].
        order: [tokens] int64: tokens of `survivals`, row by row, the likeliest first.
        seconds: [tokens + 1], unchecked: of steps that verify none, one, two ... of them.
        num_sure: tokens that the step commits in any case.
        other_s: seconds that it takes besides; negative where more of it is sunk.
        prudence: how often what draft tokens add counts.
        depths: [requests] int64, zeros: the depths to be.

    and returns how many tokens it took, and how many commits are expected.
    """
    arguments = (_Table, _Integers, _Reals, *[types.float64] * 3, _Integers)

    @numba.njit(types.Tuple((types.int64, types.float64))(*arguments), error_model="numpy")
    def take(
        survivals: Array,
        order: Array,
        seconds: Array,
        num_sure: float,
        other_s: float,
        prudence: float,
        depths: Array,
    ) -> tuple[int, float]:
        num_places = survivals.shape[1]
        num_taken, num_expected = 0, num_sure
        goodput = num_sure / (seconds[0] + other_s)
        for token in order:
            gain = survivals[token // num_places, token % num_places]
            step_s = seconds[num_taken + 1]
            counted_s = step_s + other_s + (prudence - 1) * (step_s - seconds[0])
            grown = (num_expected + gain) / counted_s
            # What is never accepted is not taken for free.
            if not (gain > 0 and grown > goodput):
                break
            goodput = grown
            num_expected += gain
            num_taken += 1
            depths[token // num_places] += 1
        return num_taken, num_expected

    compiled: Take = take
    return compiled
