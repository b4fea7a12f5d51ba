"""When requests are sent: an open loop, so that a slow service meets a growing queue."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Shape = Literal["constant", "poisson", "stepped", "burst"]

_BURST_FACTOR = 4.0  # times the rate, for the first fifth of each period
_BURST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """A rate over time, and how regular arrivals are.

    constant: a request each 1/rate seconds. poisson: the same rate, independent arrivals. stepped:
    each of `rates` in turn for `step_s`, independent arrivals. burst: as poisson, with four times
    the rate for a fifth of each `step_s`.
    """

    shape: Shape
    rates: tuple[float, ...]  # requests per second
    step_s: float

    def __post_init__(self) -> None:
        if not self.rates or min(self.rates) <= 0 or self.step_s <= 0:
            raise ValueError(f"rates {self.rates} and step {self.step_s} s must be above 0")
        if self.shape != "stepped" and len(self.rates) > 1:
            raise ValueError(f"{len(self.rates)} rates need the shape `stepped`, not {self.shape}")

    def step(self, at_s: float) -> int:
        """Which of `rates` holds at a time; the last one stays."""
        return min(int(at_s / self.step_s), len(self.rates) - 1)

    def rate(self, at_s: float) -> float:
        """Requests per second at a time."""
        rate = self.rates[self.step(at_s)]
        if self.shape == "burst" and at_s % self.step_s < _BURST_SHARE * self.step_s:
            return rate * _BURST_FACTOR
        return rate

    def arrivals(self, rng: random.Random, share: float = 1.0) -> Iterator[float]:
        """Times in seconds since the start, without end; `share` is this generator's part."""
        if self.shape == "constant":
            gap_s = 1 / (self.rates[0] * share)
            at_s = rng.uniform(0, gap_s)
            while True:
                yield at_s
                at_s += gap_s
        # Thinning: candidates at the highest rate, each kept with the present rate's share of it.
        highest = max(self.rates) * (_BURST_FACTOR if self.shape == "burst" else 1.0)
        at_s = 0.0
        while True:
            at_s += rng.expovariate(highest * share)
            if rng.random() * highest < self.rate(at_s):
                yield at_s
