"""How long a target step takes, learnt from the steps themselves."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", float, NDArray[np.float64])

_PRIOR_TOKEN_COST = 0.03  # of the base, per token; a memory-bound step's order
_PRIOR_STRENGTH = 16.0  # as if so many steps had been seen a token away from the mean
_FORGETTING = 0.99  # weight that a step keeps when the next one arrives
_OUTLIER = 4.0  # a step this many times the prediction is clipped: a page fault, not a law


class StepTimeModel:
    """T(tokens) = base + tokens * cost, fitted by discounted least squares.

    A memory-bound step reads the weights once however many tokens it verifies, so the base is
    large and the cost small; near the ridge the cost takes over (roofline, arXiv 2402.16363).
    The cost is drawn towards a share of the base for as long as steps hardly differ in size.
    """

    def __init__(self) -> None:
        self._base_s = 0.0
        self._cost_s = 0.0
        self._forget()

    @property
    def is_ready(self) -> bool:
        """Whether any step has been measured."""
        return self._weight > 0

    def predict(self, num_tokens: _Number) -> _Number:
        """Seconds that steps of so many tokens take; 0 before the first measurement."""
        return self._base_s + self._cost_s * num_tokens

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a finished step without prefill."""
        if self.is_ready:
            expected_s = self.predict(num_tokens)
            if seconds * _OUTLIER < expected_s:
                self._forget()  # slow may be an accident, fast can't: what was learnt is wrong
            elif expected_s > 0:
                seconds = min(seconds, _OUTLIER * expected_s)
        self._decay()
        self._add(num_tokens, seconds)
        self._fit()

    def _forget(self) -> None:
        self._weight = 0.0
        self._sum_x = self._sum_xx = self._sum_y = self._sum_xy = 0.0

    def _decay(self) -> None:
        self._weight *= _FORGETTING
        self._sum_x *= _FORGETTING
        self._sum_xx *= _FORGETTING
        self._sum_y *= _FORGETTING
        self._sum_xy *= _FORGETTING

    def _add(self, x: float, y: float) -> None:
        self._weight += 1.0
        self._sum_x += x
        self._sum_xx += x * x
        self._sum_y += y
        self._sum_xy += x * y

    def _fit(self) -> None:
        mean_x, mean_y = self._sum_x / self._weight, self._sum_y / self._weight
        spread = max(0.0, self._sum_xx - self._weight * mean_x**2)
        covariation = self._sum_xy - self._weight * mean_x * mean_y
        prior_s = mean_y * _PRIOR_TOKEN_COST / (1 + _PRIOR_TOKEN_COST * mean_x)
        cost_s = (covariation + _PRIOR_STRENGTH * prior_s) / (spread + _PRIOR_STRENGTH)
        self._cost_s = min(max(0.0, cost_s), mean_y / max(mean_x, 1.0))
        self._base_s = mean_y - self._cost_s * mean_x
