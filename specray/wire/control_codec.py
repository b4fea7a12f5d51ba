"""The target's unary messages, policy and statistics, to bytes and back."""

from typing import cast

from pydantic import ValidationError

from specray.config import DEPTH_RULE
from specray.errors import ProtocolError
from specray.types import DepthRule, GoodputRule, Source, SourceStats, SpeculationPolicy
from specray.wire import speculation_pb2 as pb
from specray.wire.codec import parse
from specray.wire.stats import (
    CalibrationStats,
    Durations,
    EngineLoad,
    Prospect,
    Reason,
    RelayStats,
    RooflineStats,
    TargetStats,
    Traffic,
)

_COUNTERS = (
    *("num_steps", "num_request_steps", "num_committed", "num_proposals_used"),
    *("num_proposals_late", "num_proposals_stale", "num_proposals_invalid", "num_misses"),
    *("num_open_sessions", "num_routers", "num_hits", "num_late", "num_absent"),
    "step_time_error",
)
_LOADS = (
    *("num_running", "num_waiting", "max_running", "kv_usage"),
    *("num_arrived", "decode_s", "num_decoded", "busy_s"),
)
_HISTOGRAMS = ("step_time", "wait_time", "draft_time", "relay_time", "turnaround_time")


def encode_policy(policy: SpeculationPolicy) -> bytes:
    """The policy as a `Policy` message."""
    return pb.Policy(
        is_enabled=policy.is_enabled,
        max_depth=policy.max_depth,
        max_wait_ms=policy.max_wait_ms,
        depth_rule=DEPTH_RULE.dump_json(policy.depth_rule).decode(),
        has_stop_gap=policy.has_stop_gap,
    ).SerializeToString()


def decode_policy(data: bytes) -> SpeculationPolicy:
    """The policy in a `Policy` message.

    Raises:
        ProtocolError: `data` is no such message, or its rule is none that is known here.
    """
    message = parse(pb.Policy(), data)
    rule = _depth_rule(message.depth_rule)
    return SpeculationPolicy(
        message.is_enabled, message.max_depth, message.max_wait_ms, rule, message.has_stop_gap
    )


def encode_stats(stats: TargetStats) -> bytes:
    """The counters as a `TargetStats` message."""
    message = pb.TargetStats(
        sources=[_source_message(source, counts) for source, counts in stats.sources.items()]
    )
    for name in _COUNTERS:
        setattr(message, name, getattr(stats, name))
    for name in _HISTOGRAMS:
        durations: Durations = getattr(stats, name)
        getattr(message, name).MergeFrom(_durations_message(durations))
    message.calibration.MergeFrom(_calibration_message(stats.calibration))
    message.roofline.MergeFrom(_roofline_message(stats.roofline))
    message.load.MergeFrom(_load_message(stats.load))
    prospect = stats.prospect
    message.prospect.MergeFrom(pb.Prospect(gain=prospect.gain, step_s=prospect.step_s))
    if stats.direct is not None:
        message.direct.MergeFrom(_direct_message(stats.direct))
        message.direct.SetInParent()
    return message.SerializeToString()


def decode_stats(data: bytes) -> TargetStats:
    """The counters in a `TargetStats` message.

    Raises:
        ProtocolError: `data` is no such message.
    """
    message = parse(pb.TargetStats(), data)
    stats = TargetStats(sources=dict(_source_stats(source) for source in message.sources))
    for name in _COUNTERS:
        setattr(stats, name, getattr(message, name))
    for name in _HISTOGRAMS:
        setattr(stats, name, _durations(getattr(message, name)))
    calibration, roofline = message.calibration, message.roofline
    stats.calibration = CalibrationStats(
        list(calibration.num_tokens),
        list(calibration.num_accepted),
        list(calibration.sum_predicted),
    )
    stats.roofline = RooflineStats(roofline.flops_per_byte, roofline.ridge, roofline.hardware)
    stats.load = _load(message.load)
    stats.prospect = Prospect(message.prospect.gain, message.prospect.step_s)
    stats.direct = _direct_stats(message.direct) if message.HasField("direct") else None
    return stats


def _depth_rule(text: str) -> DepthRule:
    if not text:
        return GoodputRule()
    try:
        rule: DepthRule = DEPTH_RULE.validate_json(text)
    except ValidationError as error:
        raise ProtocolError(f"depth_rule {text!r:.200} is none: {error}") from None
    return rule


def _calibration_message(stats: CalibrationStats) -> pb.CalibrationStats:
    return pb.CalibrationStats(
        num_tokens=stats.num_tokens,
        num_accepted=stats.num_accepted,
        sum_predicted=stats.sum_predicted,
    )


def _roofline_message(stats: RooflineStats) -> pb.RooflineStats:
    return pb.RooflineStats(
        flops_per_byte=stats.flops_per_byte, ridge=stats.ridge, hardware=stats.hardware
    )


def _source_message(source: Source, counts: SourceStats) -> pb.SourceStats:
    return pb.SourceStats(
        source=source,
        num_proposed=counts.num_proposed,
        num_accepted=counts.num_accepted,
        proposed_per_position=counts.proposed_per_position,
        accepted_per_position=counts.accepted_per_position,
    )


def _source_stats(message: pb.SourceStats) -> tuple[Source, SourceStats]:
    # A newer target may know sources that we do not: as a label they pass through.
    return cast(Source, message.source), SourceStats(
        message.num_proposed,
        message.num_accepted,
        list(message.proposed_per_position),
        list(message.accepted_per_position),
    )


def _load_message(load: EngineLoad) -> pb.EngineLoad:
    first_token_time = _durations_message(load.first_token_time)
    message = pb.EngineLoad(first_token_time=first_token_time)
    for name in _LOADS:
        setattr(message, name, getattr(load, name))
    return message


def _load(message: pb.EngineLoad) -> EngineLoad:
    load = EngineLoad(first_token_time=_durations(message.first_token_time))
    for name in _LOADS:
        setattr(load, name, getattr(message, name))
    return load


def _durations_message(durations: Durations) -> pb.Durations:
    return pb.Durations(count=durations.count, sum_s=durations.sum_s, buckets=durations.buckets)


def _durations(message: pb.Durations) -> Durations:
    return Durations(message.count, message.sum_s, list(message.buckets))


def _direct_message(stats: RelayStats) -> pb.DirectStats:
    return pb.DirectStats(
        connected_drafts=stats.connected_drafts,
        open_sessions=stats.open_sessions,
        num_homeless=stats.num_homeless,
        fallbacks={str(reason): count for reason, count in stats.fallbacks.items()},
        to_drafts=_traffic_message(stats.to_drafts),
        to_targets=_traffic_message(stats.to_targets),
    )


def _direct_stats(message: pb.DirectStats) -> RelayStats:
    return RelayStats(
        connected_targets=None,
        connected_drafts=tuple(message.connected_drafts),
        open_sessions=dict(message.open_sessions),
        num_homeless=message.num_homeless,
        fallbacks={cast(Reason, reason): count for reason, count in message.fallbacks.items()},
        to_drafts=_traffic(message.to_drafts),
        to_targets=_traffic(message.to_targets),
    )


def _traffic_message(traffic: Traffic) -> pb.Traffic:
    return pb.Traffic(
        num_frames=traffic.num_frames,
        num_bytes=traffic.num_bytes,
        hop_time=_durations_message(traffic.hop_time),
    )


def _traffic(message: pb.Traffic) -> Traffic:
    return Traffic(message.num_frames, message.num_bytes, _durations(message.hop_time))
