"""The target's unary messages, policy and statistics, to bytes and back."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from google.protobuf.message import Message
from pydantic import ValidationError

from specray.config import DEPTH_RULE
from specray.errors import ProtocolError
from specray.types import DepthRule, GoodputRule, Source, SourceStats, SpeculationPolicy
from specray.wire import speculation_pb2 as pb
from specray.wire.codec import parse
from specray.wire.stats import Reason, RelayStats, TargetStats, Traffic


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
    message = pb.TargetStats()
    _fill(message, stats, but=("sources", "direct"))
    for source, counts in stats.sources.items():
        _fill(message.sources.add(source=source), counts, but=("source",))
    if stats.direct is not None:
        message.direct.SetInParent()
        _fill(message.direct, stats.direct)
    return message.SerializeToString()


def decode_stats(data: bytes) -> TargetStats:
    """The counters in a `TargetStats` message.

    Raises:
        ProtocolError: `data` is no such message.
    """
    message = parse(pb.TargetStats(), data)
    stats: TargetStats = _read(TargetStats, message, but=("sources", "direct"))
    # A newer target may know sources that we do not: as a label they pass through.
    stats.sources = {cast(Source, m.source): _read(SourceStats, m) for m in message.sources}
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


def _fill(message: Message, stats: Any, but: tuple[str, ...] = ()) -> None:
    """Set each field of a message to the attribute of its name."""
    for field in message.DESCRIPTOR.fields:
        if field.name in but:
            continue
        value, there = getattr(stats, field.name), getattr(message, field.name)
        if is_dataclass(value):
            _fill(there, value)
        elif isinstance(value, Mapping):
            there.update(value)
        elif isinstance(value, (list, tuple)):
            there.extend(value)
        else:
            setattr(message, field.name, value)


def _read(kind: type[Any], message: Message, but: tuple[str, ...] = ()) -> Any:
    """An object whose attributes, but for these, are a message's fields."""
    values = {}
    for field in fields(kind):
        if field.name in but:
            continue
        value = getattr(message, field.name)
        if is_dataclass(field.type):
            value = _read(cast(type[Any], field.type), value)
        elif not isinstance(value, (int, float, str)):
            value = list(value)
        values[field.name] = value
    return kind(**values)


def _direct_stats(message: pb.DirectStats) -> RelayStats:
    return RelayStats(
        connected_targets=None,
        connected_drafts=tuple(message.connected_drafts),
        open_sessions=dict(message.open_sessions),
        num_homeless=message.num_homeless,
        fallbacks={cast(Reason, reason): count for reason, count in message.fallbacks.items()},
        to_drafts=_read(Traffic, message.to_drafts),
        to_targets=_read(Traffic, message.to_targets),
    )
