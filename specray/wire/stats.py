"""Counters that targets and routers keep and ship."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
        bucket = bisect_left(BUCKETS_S, seconds)
        if bucket < len(BUCKETS_S):
            self.buckets[bucket] += 1
        # Last, as copies read it first: what is copied meanwhile seems to exceed no bound.
        self.sum_s += seconds
        self.count += 1

    def copy(self) -> "Durations":
        """A snapshot that later observations leave alone."""
        return Durations(self.count, self.sum_s, list(self.buckets))


@dataclass(slots=True)
class CalibrationStats:
    """Verified draft tokens by tenths of their predicted survival; empty before the first."""

    num_tokens: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    sum_predicted: list[float] = field(default_factory=list)


@dataclass(slots=True)
class RooflineStats:
    """Where the latest step stood; all 0 where the hardware is not known."""

    flops_per_byte: float = 0.0
    ridge: float = 0.0
    hardware: str = ""


Reason = Literal["draft_died", "draft_stalled", "draft_evicted", "no_draft", "evened_out"]
"""Why a session went on without its draft; a label of the metrics."""


@dataclass(slots=True)
class Traffic:
    """One direction of a switch since the start."""

    num_frames: int = 0  # on its streams to drafts
    num_bytes: int = 0  # of these, as they are encoded
    hop_time: Durations = field(default_factory=Durations)  # from a frame's arrival to its sending

    def count(self, num_bytes: int) -> None:
        """Count one frame on a stream."""
        self.num_frames += 1
        self.num_bytes += num_bytes

    def observe(self, num_bytes: int, hop_s: float) -> None:
        """Count one frame that has been passed on."""
        self.count(num_bytes)
        self.hop_time.observe(hop_s)

    def copy(self) -> "Traffic":
        """A snapshot that later traffic leaves alone."""
        return Traffic(self.num_frames, self.num_bytes, self.hop_time.copy())


@dataclass(frozen=True, slots=True)
class RelayStats:
    """A snapshot of the switch of one router, or of one target with streams to drafts."""

    connected_targets: tuple[str, ...] | None  # None: it opens no streams to them
    connected_drafts: tuple[str, ...] | None
    open_sessions: Mapping[str, int]  # by draft
    num_homeless: int  # sessions that wait for a draft
    fallbacks: Mapping[Reason, int]  # sessions lost, by reason
    to_drafts: Traffic
    to_targets: Traffic


@dataclass(slots=True)
class EngineLoad:
    """What an engine has to do now, and how long its requests have waited since the start."""

    num_running: int = 0
    num_waiting: int = 0
    max_running: int = 0
    kv_usage: float = 0.0  # 0 to 1
    num_arrived: int = 0
    first_token_time: Durations = field(default_factory=Durations)
    decode_s: float = 0.0  # requests' time after their first token, summed over them
    num_decoded: int = 0  # tokens that they got in that time
    busy_s: float = 0.0  # in steps, prefill included


@dataclass(frozen=True, slots=True)
class Prospect:
    """What speculation would bring if each proposal were there when it is wanted."""

    gain: float = 0.0  # goodput over that of plain decoding; 0: not known yet
    step_s: float = 0.0  # a step that verifies such proposals


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
    num_hits: int = 0
    num_late: int = 0
    num_absent: int = 0
    num_open_sessions: int = 0
    num_routers: int = 0
    step_time: Durations = field(default_factory=Durations)
    wait_time: Durations = field(default_factory=Durations)
    draft_time: Durations = field(default_factory=Durations)
    relay_time: Durations = field(default_factory=Durations)
    turnaround_time: Durations = field(default_factory=Durations)
    calibration: CalibrationStats = field(default_factory=CalibrationStats)
    roofline: RooflineStats = field(default_factory=RooflineStats)
    step_time_error: float = 0.0
    load: EngineLoad = field(default_factory=EngineLoad)
    prospect: Prospect = Prospect()
    direct: RelayStats | None = None  # of its own streams to drafts, if it has any
