"""Prometheus metrics of the three roles, through `ray.serve.metrics`.

Engines count in their own processes; replicas publish what has been added since the last look.
"""

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

from ray.serve import metrics as serve_metrics

from specray.control.calibration import expected_error
from specray.control.pools import Decision
from specray.control.slow_loop import Decisions
from specray.draft.engine import EngineStats
from specray.types import SourceStats
from specray.wire.stats import BUCKETS_S, Durations, RelayStats, TargetStats, Traffic

_OBSERVED_S = (
    *((lower + upper) / 2 for lower, upper in pairwise((0.0, *BUCKETS_S))),
    2 * BUCKETS_S[-1],
)
"""What stands for the durations of each bucket, and for those beyond the last."""


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
        if added > 0:  # Ray refuses 0
            self._counter.inc(added, tags=tags)
        self._published[key] = total


class _Histogram:
    """A histogram that follows one kept elsewhere: counts are exact, the sum nearly."""

    def __init__(
        self, instruments: Any, name: str, description: str, tag_keys: tuple[str, ...] = ()
    ) -> None:
        self._histogram = instruments.Histogram(
            name, description=description, boundaries=list(BUCKETS_S), tag_keys=tag_keys
        )
        self._published: dict[tuple[str, ...], list[int]] = {}

    def follow(self, durations: Durations, **tags: str) -> None:
        key = tuple(tags.values())
        counts = [*durations.buckets, durations.count - sum(durations.buckets)]
        published = self._published.get(key, [0] * len(counts))
        counts = list(map(max, counts, published))  # a copy made meanwhile may lack the latest
        for value, now, before in zip(_OBSERVED_S, counts, published, strict=True):
            for _ in range(now - before):
                self._histogram.observe(value, tags=tags)
        self._published[key] = counts


class _DepthControlMetrics:
    """What a target's depths are chosen by, and how good it is."""

    def __init__(self, instruments: Any) -> None:
        total, by_bin = partial(_Total, instruments), ("predicted",)
        self._tokens = total(
            "specray_survival_tokens", "Draft tokens verified, by predicted survival.", by_bin
        )
        self._survivors = total("specray_survival_accepted_tokens", "Of these, accepted.", by_bin)
        self._calibration_error = instruments.Gauge(
            "specray_survival_calibration_error",
            description="Expected calibration error of predicted survivals.",
        )
        self._step_time_error = instruments.Gauge(
            "specray_step_time_error",
            description="Median relative error of predicted step times, lately.",
        )
        self._intensity = instruments.Gauge(
            "specray_arithmetic_intensity", description="FLOPs per byte of the latest step."
        )
        self._ridge = instruments.Gauge(
            "specray_ridge_intensity",
            description="FLOPs per byte from which on a step is bound by arithmetic.",
        )
        self._side = instruments.Gauge(
            "specray_compute_bound",
            description="1 if the latest step lay right of the ridge, 0 if left of it.",
        )

    def publish(self, stats: TargetStats) -> None:
        seen = stats.calibration
        for i, (tokens, accepted) in enumerate(
            zip(seen.num_tokens, seen.num_accepted, strict=True)
        ):
            predicted = f"{i / len(seen.num_tokens):.1f}"  # and up to the next
            self._tokens.follow(tokens, predicted=predicted)
            self._survivors.follow(accepted, predicted=predicted)
        self._calibration_error.set(
            expected_error(seen.num_tokens, seen.num_accepted, seen.sum_predicted)
        )
        self._step_time_error.set(stats.step_time_error)
        roofline = stats.roofline
        if roofline.hardware:
            self._intensity.set(roofline.flops_per_byte)
            self._ridge.set(roofline.ridge)
            self._side.set(float(roofline.flops_per_byte > roofline.ridge))


class RelayMetrics:
    """What is reported of a switch: by a router, or a target with streams to drafts."""

    def __init__(self, instruments: Any = serve_metrics, *, has_drafts: bool = True) -> None:
        """Takes what makes metrics, and whether there is a pool of drafts that might be missed."""
        self._has_drafts = has_drafts
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
        """Report a snapshot of the switch's counters."""
        for reason, total in stats.fallbacks.items():
            self._fallbacks.follow(total, reason=reason)
        self._publish_traffic("to_drafts", stats.to_drafts)
        self._publish_traffic("to_targets", stats.to_targets)
        for role, connected in (
            ("target", stats.connected_targets),
            ("draft", stats.connected_drafts if self._has_drafts else None),
        ):
            if connected is not None:
                self._connected.set(len(connected), tags={"role": role})
        self._homeless.set(stats.num_homeless)

    def _publish_traffic(self, direction: str, traffic: Traffic) -> None:
        self._frames.follow(traffic.num_frames, direction=direction)
        self._bytes.follow(traffic.num_bytes, direction=direction)
        self._hop_time.follow(traffic.hop_time, direction=direction)


class TargetMetrics:
    """What a target replica reports."""

    def __init__(self, instruments: Any = serve_metrics, *, has_drafts: bool = True) -> None:
        """See `RelayMetrics`."""
        self._direct = RelayMetrics(instruments, has_drafts=has_drafts)
        total, histogram = partial(_Total, instruments), partial(_Histogram, instruments)
        by_source, by_position = ("source",), ("source", "position")
        self._proposed = total("specray_proposed_tokens", "Draft tokens verified.", by_source)
        self._accepted = total("specray_accepted_tokens", "Draft tokens accepted.", by_source)
        self._proposed_at = total(
            "specray_proposed_tokens_at_position",
            "Verified, by place among the source's.",
            by_position,
        )
        self._accepted_at = total(
            "specray_accepted_tokens_at_position",
            "Accepted, by place among the source's.",
            by_position,
        )
        self._committed = total("specray_committed_tokens", "Tokens added to requests.")
        self._request_steps = total(
            "specray_request_steps", "Steps times the requests that got a token in them."
        )
        self._steps = total("specray_steps", "Steps of the target's engine.")
        self._proposals = total(
            "specray_proposals", "Proposals by what became of them.", ("outcome",)
        )
        self._lookups = total(
            "specray_buffer_lookups",
            "Steps by what they found of the proposal that was due.",
            ("result",),
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
        self._depth_control = _DepthControlMetrics(instruments)
        self._step_time = histogram("specray_step_seconds", "Steps without prefill.")
        self._turnaround_time = histogram(
            "specray_turnaround_seconds", "A verification's end to the next one's start, on hits."
        )
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
        self._depth_control.publish(stats)
        self._step_time.follow(stats.step_time)
        self._wait_time.follow(stats.wait_time)
        self._draft_time.follow(stats.draft_time)
        self._relay_time.follow(stats.relay_time)
        self._turnaround_time.follow(stats.turnaround_time)
        if stats.direct is not None:
            self._direct.publish(stats.direct)

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
        self._lookups.follow(stats.num_hits, result="hit")
        self._lookups.follow(stats.num_late, result="late")
        self._lookups.follow(stats.num_absent, result="miss")


class DraftMetrics:
    """What a draft replica reports."""

    def __init__(self, method: str, instruments: Any = serve_metrics) -> None:
        total = partial(_Total, instruments)
        self._tags = {"method": method}
        keys = ("method",)
        self._proposals = total("specray_draft_proposals", "Proposals sent.", keys)
        self._tokens = total("specray_draft_tokens", "Tokens proposed.", keys)
        self._ahead = total(
            "specray_draft_ahead_proposals", "Sent for outcomes that were not yet known.", keys
        )
        self._evictions = total("specray_draft_evictions", "Sessions dropped for memory.", keys)
        self._busy = total(
            "specray_draft_busy_seconds",
            "Time spent on answers, and ahead: on what nobody waits for.",
            (*keys, "work"),
        )
        self._answers_s = 0.0
        self._sessions = instruments.Gauge(
            "specray_draft_sessions", description="Open sessions.", tag_keys=keys
        )

    def publish(self, stats: EngineStats) -> None:
        """Report a snapshot of the draft engine's counters."""
        self._proposals.follow(stats.num_proposals, **self._tags)
        self._tokens.follow(stats.num_proposed, **self._tags)
        self._ahead.follow(stats.num_ahead, **self._tags)
        self._evictions.follow(stats.num_evicted, **self._tags)
        # A snapshot within a turn may hold its time ahead and not yet all its time.
        self._answers_s = max(self._answers_s, stats.busy_s - stats.ahead_s)
        self._busy.follow(self._answers_s, **self._tags, work="answers")
        self._busy.follow(stats.ahead_s, **self._tags, work="ahead")
        self._sessions.set(stats.num_open_sessions, tags=self._tags)


class ControllerMetrics:
    """What the controller has decided."""

    def __init__(self, instruments: Any = serve_metrics) -> None:
        self._replicas = instruments.Gauge(
            "specray_wanted_replicas",
            description="Replicas that the slow loop wants, before Serve's bounds.",
            tag_keys=("pool",),
        )
        self._ceiling = instruments.Gauge(
            "specray_ceiling",
            description="The slow loop's ceiling for depth or fan-out.",
            tag_keys=("of",),
        )
        self._changes = _Total(
            instruments, "specray_decisions", "Decisions that changed something.", ("on",)
        )
        self._num_changes: Counter[str] = Counter()

    def publish(self, decisions: Decisions) -> None:
        """Report what is decided now."""
        for pool, decision in decisions.num_replicas.items():
            self._replicas.set(decision.value, tags={"pool": pool})
        self._ceiling.set(decisions.max_depth.value, tags={"of": "depth"})
        self._ceiling.set(decisions.max_fan_out.value, tags={"of": "fan_out"})

    def count(self, decision: Decision) -> None:
        """Count a decision that changed something."""
        self._num_changes[decision.subject] += 1
        self._changes.follow(self._num_changes[decision.subject], on=decision.subject)


class UserConfigMetrics:
    """Of a deployment whose `user_config` may change."""

    def __init__(self, instruments: Any = serve_metrics) -> None:
        self._refused = instruments.Gauge(
            "specray_user_config_refused",
            description="1 while the latest user_config is faulty and the one before it holds.",
        )

    def publish(self, *, is_refused: bool) -> None:
        """Report whether the latest was refused."""
        self._refused.set(float(is_refused))
