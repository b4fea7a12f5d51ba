"""What a router counts about its relay."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specray.router.sessions import Reason
from specray.wire.stats import Durations


@dataclass(slots=True)
class Traffic:
    """One direction of the relay since the start."""

    num_frames: int = 0  # as they arrived
    num_bytes: int = 0
    hop_time: Durations = field(default_factory=Durations)  # from a frame's arrival to its sending

    def observe(self, num_bytes: int, hop_s: float) -> None:
        """Count one frame."""
        self.num_frames += 1
        self.num_bytes += num_bytes
        self.hop_time.observe(hop_s)

    def copy(self) -> "Traffic":
        """A snapshot that later traffic leaves alone."""
        return Traffic(self.num_frames, self.num_bytes, self.hop_time.copy())


@dataclass(frozen=True, slots=True)
class RelayStats:
    """A snapshot of one router's relay."""

    connected_targets: tuple[str, ...]
    connected_drafts: tuple[str, ...]
    open_sessions: Mapping[str, int]  # by draft
    num_homeless: int  # sessions that wait for a draft
    fallbacks: Mapping[Reason, int]  # sessions lost, by reason
    to_drafts: Traffic
    to_targets: Traffic
