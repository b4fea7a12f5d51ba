"""Counters that targets and routers keep and ship."""

from bisect import bisect_left
from dataclasses import dataclass, field

from specray.types import Source, SourceStats

BUCKETS_S = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02),
    *(0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
"""Upper bounds of the buckets of every duration histogram, in seconds."""


@dataclass(slots=True)
class Durations:
    """A histogram of durations; what exceeds the last bound is only in `count` and `sum_s`."""

    count: int = 0
    sum_s: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS_S))  # not cumulative

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.count += 1
        self.sum_s += seconds
        bucket = bisect_left(BUCKETS_S, seconds)
        if bucket < len(BUCKETS_S):
            self.buckets[bucket] += 1

    def copy(self) -> "Durations":
        """A snapshot that later observations leave alone."""
        return Durations(self.count, self.sum_s, list(self.buckets))


@dataclass(slots=True)
class TargetStats:
    """Counters of one target replica since its start; see `speculation.proto` for each."""

    num_steps: int = 0
    num_request_steps: int = 0
    num_committed: int = 0
    sources: dict[Source, SourceStats] = field(default_factory=dict)
    num_proposals_used: int = 0
    num_proposals_late: int = 0
    num_proposals_stale: int = 0
    num_proposals_invalid: int = 0
    num_misses: int = 0
    num_open_sessions: int = 0
    num_routers: int = 0
    step_time: Durations = field(default_factory=Durations)
    wait_time: Durations = field(default_factory=Durations)
    draft_time: Durations = field(default_factory=Durations)
    relay_time: Durations = field(default_factory=Durations)
