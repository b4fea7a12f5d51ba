"""Prometheus metrics of the three roles, through `ray.serve.metrics`.

Engines count in their own processes; replicas publish what has been added since the last look.
"""

from functools import partial
from typing import Any

from ray.serve import metrics as serve_metrics

from specray.draft.engine import EngineStats
from specray.router.stats import RelayStats, Traffic
from specray.types import SourceStats
from specray.wire.stats import BUCKETS_S, Durations, TargetStats


class _Total:
    """A counter that follows a total kept elsewhere."""

    def __init__(
        self, instruments: Any, name: str, description: str, tag_keys: tuple[str, ...] = ()
    ) -> None:
        self._counter = instruments.Counter(name, description=description, tag_keys=tag_keys)
        self._published: dict[tuple[str, ...], float] = {}

    def follow(self, total: float, **tags: str) -> None:
        key = tuple(tags.values())
        added = total - self._published.get(key, 0)
        if added > 0:  # Ray refuses 0; less means that the engine was restarted
            self._counter.inc(added, tags=tags)
        self._published[key] = total


class _Histogram:
    """A histogram that follows one kept elsewhere: bucket counts are exact, the sum nearly."""

    def __init__(
        self, instruments: Any, name: str, description: str, tag_keys: tuple[str, ...] = ()
    ) -> None:
        self._histogram = instruments.Histogram(
            name, description=description, boundaries=list(BUCKETS_S), tag_keys=tag_keys
        )
        self._published: dict[tuple[str, ...], list[int]] = {}

    def follow(self, durations: Durations, **tags: str) -> None:
        key = tuple(tags.values())
        published = self._published.get(key, [0] * len(BUCKETS_S))
        lower = 0.0
        for upper, now, before in zip(BUCKETS_S, durations.buckets, published, strict=True):
            for _ in range(now - before):
                self._histogram.observe((lower + upper) / 2, tags=tags)
            lower = upper
        self._published[key] = list(durations.buckets)


class TargetMetrics:
    """What a target replica reports."""

    def __init__(self, instruments: Any = serve_metrics) -> None:
        total, histogram = partial(_Total, instruments), partial(_Histogram, instruments)
        by_source, by_position = ("source",), ("source", "position")
        self._proposed = total("specray_proposed_tokens", "Draft tokens verified.", by_source)
        self._accepted = total("specray_accepted_tokens", "Draft tokens accepted.", by_source)
        self._proposed_at = total(
            "specray_proposed_tokens_at_position", "Verified, by depth in the chain.", by_position
        )
        self._accepted_at = total(
            "specray_accepted_tokens_at_position", "Accepted, by depth in the chain.", by_position
        )
        self._committed = total("specray_committed_tokens", "Tokens added to requests.")
        self._request_steps = total(
            "specray_request_steps", "Steps times the requests that got a token in them."
        )
        self._steps = total("specray_steps", "Steps of the target's engine.")
        self._proposals = total(
            "specray_proposals", "Proposals by what became of them.", ("outcome",)
        )
        self._rate = instruments.Gauge(
            "specray_acceptance_rate", description="Accepted over proposed.", tag_keys=by_source
        )
        self._efficiency = instruments.Gauge(
            "specray_block_efficiency", description="Tokens per request and step."
        )
        self._sessions = instruments.Gauge(
            "specray_open_sessions", description="Requests that may speculate."
        )
        self._routers = instruments.Gauge(
            "specray_connected_routers", description="Routers with a stream."
        )
        self._step_time = histogram("specray_step_seconds", "Steps without prefill.")
        self._wait_time = histogram("specray_wait_seconds", "Steps held back for proposals.")
        self._draft_time = histogram("specray_draft_seconds", "Drafting, as the draft reports it.")
        self._relay_time = histogram(
            "specray_relay_seconds", "Commit to proposal, less the draft's time."
        )

    def publish(self, stats: TargetStats) -> None:
        """Report a snapshot of the engine's counters."""
        for source, counts in stats.sources.items():
            self._publish_source(source, counts)
        self._committed.follow(stats.num_committed)
        self._request_steps.follow(stats.num_request_steps)
        self._steps.follow(stats.num_steps)
        self._publish_proposals(stats)
        self._efficiency.set(stats.num_committed / max(1, stats.num_request_steps))
        self._sessions.set(stats.num_open_sessions)
        self._routers.set(stats.num_routers)
        self._step_time.follow(stats.step_time)
        self._wait_time.follow(stats.wait_time)
        self._draft_time.follow(stats.draft_time)
        self._relay_time.follow(stats.relay_time)

    def _publish_source(self, source: str, counts: SourceStats) -> None:
        self._proposed.follow(counts.num_proposed, source=source)
        self._accepted.follow(counts.num_accepted, source=source)
        self._rate.set(counts.num_accepted / max(1, counts.num_proposed), tags={"source": source})
        for position, total in enumerate(counts.proposed_per_position, 1):
            self._proposed_at.follow(total, source=source, position=str(position))
        for position, total in enumerate(counts.accepted_per_position, 1):
            self._accepted_at.follow(total, source=source, position=str(position))

    def _publish_proposals(self, stats: TargetStats) -> None:
        self._proposals.follow(stats.num_proposals_used, outcome="used")
        self._proposals.follow(stats.num_proposals_late, outcome="late")
        self._proposals.follow(stats.num_proposals_stale, outcome="stale")
        self._proposals.follow(stats.num_proposals_invalid, outcome="invalid")
        self._proposals.follow(stats.num_misses, outcome="missed")


class RouterMetrics:
    """What a router reports."""

    def __init__(self, instruments: Any = serve_metrics) -> None:
        total, histogram = partial(_Total, instruments), partial(_Histogram, instruments)
        by_direction = ("direction",)
        self._fallbacks = total(
            "specray_fallbacks", "Sessions that lost their draft, by reason.", ("reason",)
        )
        self._frames = total("specray_relay_frames", "Frames relayed.", by_direction)
        self._bytes = total("specray_relay_bytes", "Bytes relayed.", by_direction)
        self._hop_time = histogram(
            "specray_relay_hop_seconds", "A frame's time inside the router.", by_direction
        )
        self._connected = instruments.Gauge(
            "specray_connected_replicas", description="Open streams.", tag_keys=("role",)
        )
        self._homeless = instruments.Gauge(
            "specray_sessions_without_draft", description="Sessions that wait for a draft."
        )

    def publish(self, stats: RelayStats) -> None:
        """Report a snapshot of the relay's counters."""
        for reason, total in stats.fallbacks.items():
            self._fallbacks.follow(total, reason=reason)
        self._publish_traffic("to_drafts", stats.to_drafts)
        self._publish_traffic("to_targets", stats.to_targets)
        self._connected.set(len(stats.connected_targets), tags={"role": "target"})
        self._connected.set(len(stats.connected_drafts), tags={"role": "draft"})
        self._homeless.set(stats.num_homeless)

    def _publish_traffic(self, direction: str, traffic: Traffic) -> None:
        self._frames.follow(traffic.num_frames, direction=direction)
        self._bytes.follow(traffic.num_bytes, direction=direction)
        self._hop_time.follow(traffic.hop_time, direction=direction)


class DraftMetrics:
    """What a draft replica reports."""

    def __init__(self, method: str, instruments: Any = serve_metrics) -> None:
        total = partial(_Total, instruments)
        self._tags = {"method": method}
        keys = ("method",)
        self._proposals = total("specray_draft_proposals", "Proposals sent.", keys)
        self._tokens = total("specray_draft_tokens", "Tokens proposed.", keys)
        self._evictions = total("specray_draft_evictions", "Sessions dropped for memory.", keys)
        self._busy = total("specray_draft_busy_seconds", "Time spent drafting.", keys)
        self._sessions = instruments.Gauge(
            "specray_draft_sessions", description="Open sessions.", tag_keys=keys
        )

    def publish(self, stats: EngineStats) -> None:
        """Report a snapshot of the draft engine's counters."""
        self._proposals.follow(stats.num_proposals, **self._tags)
        self._tokens.follow(stats.num_proposed, **self._tags)
        self._evictions.follow(stats.num_evicted, **self._tags)
        self._busy.follow(stats.busy_s, **self._tags)
        self._sessions.set(stats.num_open_sessions, tags=self._tags)
