"""What a run's answers amount to, by rate and by whether they speculated."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .stream import Timing

_QUANTILES = {"p50": 50, "p90": 90, "p99": 99}
_ROUND = 1


@dataclass(slots=True)
class Group:
    """The requests of one rate and kind."""

    qps: float
    speculation: str
    timings: list[Timing] = field(default_factory=list)
    num_failures: int = 0
    began_s: float = float("inf")  # since the start of the run
    ended_s: float = 0.0

    def add(self, timing: Timing | None, sent_s: float, ended_s: float) -> None:
        """Count a request; without a timing it failed."""
        self.began_s, self.ended_s = min(self.began_s, sent_s), max(self.ended_s, ended_s)
        if timing is None:
            self.num_failures += 1
        else:
            self.timings.append(timing)

    def report(self) -> dict[str, Any]:
        """In JSON's types; times in milliseconds."""
        tokens = sum(timing.num_tokens for timing in self.timings)
        seconds = max(self.ended_s - self.began_s, 1e-9)
        return {
            "qps": self.qps,
            "speculation": self.speculation,
            "num_requests": len(self.timings) + self.num_failures,
            "num_failures": self.num_failures,
            "num_tokens": tokens,
            "tokens_per_s": round(tokens / seconds, _ROUND),
            "ttft_ms": _quantiles(self.timings, lambda t: [t.ttft_s]),
            "tpot_ms": _quantiles(self.timings, lambda t: [] if t.tpot_s is None else [t.tpot_s]),
            "itl_ms": _quantiles(self.timings, lambda t: t.gaps_s),
            "e2e_ms": _quantiles(self.timings, lambda t: [t.e2e_s]),
        }


def _quantiles(
    timings: Sequence[Timing], values: Callable[[Timing], list[float]]
) -> dict[str, float]:
    found = [1000 * value for timing in timings for value in values(timing)]
    if not found:
        return {}
    cuts = statistics.quantiles(found, n=100, method="inclusive") if len(found) > 1 else found * 99
    quantiles = {name: cuts[percent - 1] for name, percent in _QUANTILES.items()}
    return {
        name: round(value, _ROUND)
        for name, value in ({"mean": statistics.fmean(found)} | quantiles).items()
    }
