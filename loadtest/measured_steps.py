"""A law of step times from a table of measurements."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specray.control.roofline import StepLoad


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Interpolates a table of steps in which all requests compute equally many tokens.

    Linear between its entries, in the requests and in the tokens of each. What is computed beyond
    its last column costs what a token costs in the fullest steps measured.
    """

    num_requests: tuple[int, ...]  # [row], ascending
    num_tokens_each: tuple[int, ...]  # [column], ascending, two or more
    seconds: tuple[tuple[float, ...], ...]  # [row, column]
    factors: tuple[float, ...] = (1.0,)  # [row], or one for all: this machine over the table's
    prefill_token_s: float | None = None  # of a prompt's token; what another costs if left out

    def step_s(self, load: StepLoad) -> float:
        """See `specray.simulate.step_laws.StepLaw`."""
        num_prefill = 0 if self.prefill_token_s is None else load.num_prefill_tokens
        num_tokens = load.num_tokens - num_prefill
        most = self.num_tokens_each[-1] * load.num_requests
        num_inside = min(num_tokens, most)
        each = num_inside / max(1, load.num_requests)
        rows = [float(np.interp(each, self.num_tokens_each, row)) for row in self.seconds]
        scaled = np.array(rows) * np.array(self.factors)
        inside_s = _along(self.num_requests, scaled.tolist(), load.num_requests)
        prefill_s = num_prefill * (self.prefill_token_s or 0.0)
        return inside_s + (num_tokens - num_inside) * self._last_token_s + prefill_s

    @property
    def _last_token_s(self) -> float:
        """Of one more token in the fullest step of the table."""
        before, last = self.num_tokens_each[-2:]
        added_s = self.seconds[-1][-1] - self.seconds[-1][-2]
        return self.factors[-1] * added_s / (self.num_requests[-1] * (last - before))


def _along(places: Sequence[int], values: Sequence[float], place: float) -> float:
    """Linear between the places; before the first its value, beyond the last its last slope."""
    if len(places) > 1 and place > places[-1]:
        slope = (values[-1] - values[-2]) / (places[-1] - places[-2])
        return values[-1] + slope * (place - places[-1])
    return float(np.interp(place, places, values))
