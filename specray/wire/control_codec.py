"""The target's unary messages, policy and statistics, to bytes and back."""

from typing import cast

from specray.types import Source, SourceStats, SpeculationPolicy
from specray.wire import speculation_pb2 as pb
from specray.wire.codec import parse
from specray.wire.stats import Durations, TargetStats

_COUNTERS = (
    *("num_steps", "num_request_steps", "num_committed", "num_proposals_used"),
    *("num_proposals_late", "num_proposals_stale", "num_proposals_invalid", "num_misses"),
    *("num_open_sessions", "num_routers"),
)
_HISTOGRAMS = ("step_time", "wait_time", "draft_time", "relay_time")


def encode_policy(policy: SpeculationPolicy) -> bytes:
    """The policy as a `Policy` message."""
    return pb.Policy(
        is_enabled=policy.is_enabled, max_depth=policy.max_depth, max_wait_ms=policy.max_wait_ms
    ).SerializeToString()


def decode_policy(data: bytes) -> SpeculationPolicy:
    """The policy in a `Policy` message.

    Raises:
        ProtocolError: `data` is no such message.
    """
    message = parse(pb.Policy(), data)
    return SpeculationPolicy(message.is_enabled, message.max_depth, message.max_wait_ms)


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
    return stats


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


def _durations_message(durations: Durations) -> pb.Durations:
    return pb.Durations(count=durations.count, sum_s=durations.sum_s, buckets=durations.buckets)


def _durations(message: pb.Durations) -> Durations:
    return Durations(message.count, message.sum_s, list(message.buckets))
