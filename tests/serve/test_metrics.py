from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from specray.control.pools import Decision
from specray.control.slow_loop import Decisions
from specray.draft.engine import EngineStats
from specray.serve.metrics import (
    ControllerMetrics,
    DraftMetrics,
    RelayMetrics,
    TargetMetrics,
    UserConfigMetrics,
)
from specray.types import SourceStats
from specray.wire.stats import (
    CalibrationStats,
    Durations,
    RelayStats,
    RooflineStats,
    TargetStats,
    Traffic,
)

Key = tuple[str, ...]


class Instruments:
    """Records what would go to Prometheus: series by name and tag values."""

    def __init__(self) -> None:
        self.values: dict[Key, float] = {}
        self.observed: dict[Key, list[float]] = {}

    def Counter(self, name: str, *, description: str, tag_keys: Key = ()) -> "Instrument":  # noqa: N802
        return Instrument(self, name, tag_keys)

    Gauge = Counter

    def Histogram(  # noqa: N802
        self, name: str, *, description: str, boundaries: list[float], tag_keys: Key = ()
    ) -> "Instrument":
        assert boundaries == sorted(boundaries)
        return Instrument(self, name, tag_keys)


@dataclass
class Instrument:
    instruments: Instruments
    name: str
    tag_keys: Key = field(default=())

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0  # as Ray insists
        key = self._key(tags)
        self.instruments.values[key] = self.instruments.values.get(key, 0) + value

    def set(self, value: float, tags: dict[str, str] | None = None) -> None:
        self.instruments.values[self._key(tags or {})] = value

    def observe(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0
        self.instruments.observed.setdefault(self._key(tags), []).append(value)

    def _key(self, tags: dict[str, str]) -> Key:
        assert set(tags) == set(self.tag_keys)
        return (self.name, *(tags[key] for key in self.tag_keys))


@pytest.fixture
def instruments() -> Instruments:
    return Instruments()


def durations(*seconds: float) -> Durations:
    result = Durations()
    for value in seconds:
        result.observe(value)
    return result


def target_stats(**counts: Any) -> TargetStats:
    sources = {"model": SourceStats(10, 6, [5, 5], [4, 2])}
    return TargetStats(**{"sources": sources, "num_steps": 5, "num_request_steps": 8} | counts)


def test_counters_follow_the_engines_totals(instruments: Instruments) -> None:
    metrics = TargetMetrics(instruments=instruments)
    metrics.publish(target_stats(num_committed=20))
    metrics.publish(target_stats(num_committed=20))
    metrics.publish(target_stats(num_committed=27, num_steps=6))

    assert instruments.values["specray_committed_tokens",] == 27
    assert instruments.values["specray_steps",] == 6
    assert instruments.values["specray_request_steps",] == 8


def test_an_engine_that_starts_anew_does_not_count_down(instruments: Instruments) -> None:
    metrics = TargetMetrics(instruments=instruments)
    for total in (100, 3, 10):
        metrics.publish(target_stats(num_committed=total))

    assert instruments.values["specray_committed_tokens",] == 107


def test_acceptance_is_told_by_source_and_position(instruments: Instruments) -> None:
    metrics = TargetMetrics(instruments=instruments)
    metrics.publish(target_stats(num_committed=24))
    values = instruments.values

    assert values["specray_proposed_tokens", "model"] == 10
    assert values["specray_accepted_tokens", "model"] == 6
    assert values["specray_acceptance_rate", "model"] == pytest.approx(0.6)
    assert values["specray_proposed_tokens_at_position", "model", "2"] == 5
    assert values["specray_accepted_tokens_at_position", "model", "1"] == 4
    assert values["specray_block_efficiency",] == pytest.approx(24 / 8)


def test_proposals_are_told_by_what_became_of_them(instruments: Instruments) -> None:
    counts = {"used": 5, "late": 4, "stale": 3, "invalid": 2}
    TargetMetrics(instruments=instruments).publish(
        target_stats(**{f"num_proposals_{k}": v for k, v in counts.items()}, num_misses=1)
    )

    for outcome, count in (counts | {"missed": 1}).items():
        assert instruments.values["specray_proposals", outcome] == count


def test_an_engine_that_did_nothing_yet_divides_by_nothing(instruments: Instruments) -> None:
    TargetMetrics(instruments=instruments).publish(TargetStats(sources={"model": SourceStats()}))

    assert instruments.values["specray_block_efficiency",] == 0
    assert instruments.values["specray_acceptance_rate", "model"] == 0


def test_depth_control_tells_what_it_knows(instruments: Instruments) -> None:
    counts, accepted = [0] * 9 + [10], [0] * 9 + [9]
    stats = target_stats(
        calibration=CalibrationStats(counts, accepted, [0.0] * 9 + [9.5]),
        roofline=RooflineStats(40.0, 160.0, "H100"),
        step_time_error=0.04,
    )
    metrics = TargetMetrics(instruments=instruments)
    metrics.publish(stats)
    metrics.publish(stats)
    values = instruments.values

    assert values["specray_survival_tokens", "0.9"] == 10
    assert values["specray_survival_accepted_tokens", "0.9"] == 9
    assert values["specray_survival_calibration_error",] == pytest.approx(0.05)
    assert values["specray_step_time_error",] == 0.04
    assert values["specray_arithmetic_intensity",] == 40
    assert values["specray_ridge_intensity",] == 160
    assert values["specray_compute_bound",] == 0


def test_each_duration_is_observed_once_in_its_bucket(instruments: Instruments) -> None:
    metrics = TargetMetrics(instruments=instruments)
    metrics.publish(target_stats(step_time=durations(0.0004, 0.03)))
    metrics.publish(target_stats(step_time=durations(0.0004, 0.03, 0.04, 7.0, 70.0)))

    observed = sorted(instruments.observed["specray_step_seconds",])
    assert [
        round(sum(o > b for b in (0.0002, 0.0005, 0.02, 0.05, 5.0, 10.0))) for o in observed
    ] == [
        1,
        3,
        3,
        5,
        6,
    ]


def test_a_copy_that_was_made_meanwhile_counts_nothing_twice(instruments: Instruments) -> None:
    metrics = TargetMetrics(instruments=instruments)
    whole, torn = durations(0.03, 70.0), durations(0.03, 70.0, 0.03)
    torn.count -= 1
    for step_time in (whole, torn, durations(0.03, 70.0, 0.03)):
        metrics.publish(target_stats(step_time=step_time))

    assert sorted(instruments.observed["specray_step_seconds",]) == [0.035, 0.035, 20.0]


def test_the_router_reports_both_directions_and_both_roles(instruments: Instruments) -> None:
    to_drafts, to_targets = Traffic(), Traffic()
    to_drafts.observe(100, 0.001)
    to_targets.observe(50, 0.002)
    to_targets.observe(70, 0.002)
    fallbacks = {"draft_died": 2, "draft_stalled": 0, "draft_evicted": 1, "no_draft": 3}
    stats = RelayStats(
        ("t",),
        ("d1", "d2"),
        {"d1": 4},
        5,
        fallbacks,
        to_drafts,
        to_targets,  # type: ignore[arg-type]
    )
    metrics = RelayMetrics(instruments)
    metrics.publish(stats)
    metrics.publish(stats)
    values = instruments.values

    assert values["specray_fallbacks", "no_draft"] == 3
    assert ("specray_fallbacks", "draft_stalled") not in values
    assert values["specray_relay_frames", "to_targets"] == 2
    assert values["specray_relay_bytes", "to_targets"] == 120
    assert values["specray_relay_bytes", "to_drafts"] == 100
    assert len(instruments.observed["specray_relay_hop_seconds", "to_targets"]) == 2
    assert values["specray_connected_replicas", "target"] == 1
    assert values["specray_connected_replicas", "draft"] == 2
    assert values["specray_sessions_without_draft",] == 5


def test_a_target_reports_its_own_streams_to_drafts_alike(instruments: Instruments) -> None:
    to_drafts = Traffic()
    to_drafts.observe(80, 0.001)
    direct = RelayStats(None, ("d",), {"d": 1}, 2, {"draft_died": 3}, to_drafts, Traffic())
    TargetMetrics(instruments=instruments).publish(target_stats(direct=direct))
    values = instruments.values

    assert values["specray_fallbacks", "draft_died"] == 3
    assert values["specray_relay_frames", "to_drafts"] == 1
    assert values["specray_relay_bytes", "to_drafts"] == 80
    assert values["specray_connected_replicas", "draft"] == 1
    assert ("specray_connected_replicas", "target") not in values  # that is for routers to say
    assert values["specray_sessions_without_draft",] == 2


def test_where_there_is_no_draft_pool_none_is_missed(instruments: Instruments) -> None:
    """`SpecrayNoDraft` goes by the gauge, which alerts on 0."""
    stats = RelayStats(("t",), (), {}, 0, {}, Traffic(), Traffic())
    RelayMetrics(instruments, has_drafts=False).publish(stats)
    target = TargetMetrics(instruments, has_drafts=False)
    target.publish(target_stats(direct=replace(stats, connected_targets=None)))

    assert instruments.values["specray_connected_replicas", "target"] == 1
    assert ("specray_connected_replicas", "draft") not in instruments.values


def test_lookups_are_told_apart_by_result(instruments: Instruments) -> None:
    metrics = TargetMetrics(instruments=instruments)
    metrics.publish(target_stats(num_hits=5, num_late=2, turnaround_time=durations(0.0007)))
    metrics.publish(target_stats(num_hits=9, num_late=2, num_absent=1))
    values = instruments.values

    assert values["specray_buffer_lookups", "hit"] == 9
    assert values["specray_buffer_lookups", "late"] == 2
    assert values["specray_buffer_lookups", "miss"] == 1
    assert len(instruments.observed["specray_turnaround_seconds",]) == 1


def test_the_draft_reports_its_method(instruments: Instruments) -> None:
    metrics = DraftMetrics("prompt_lookup", instruments)
    metrics.publish(EngineStats(3, 10, 40, 1, 2, 0.5))
    metrics.publish(EngineStats(4, 11, 44, 1, 2, 0.75, num_ahead=30, ahead_s=0.5))
    values = instruments.values

    assert values["specray_draft_proposals", "prompt_lookup"] == 11
    assert values["specray_draft_tokens", "prompt_lookup"] == 44
    assert values["specray_draft_ahead_proposals", "prompt_lookup"] == 30
    assert values["specray_draft_evictions", "prompt_lookup"] == 2
    assert values["specray_draft_busy_seconds", "prompt_lookup", "answers"] == 0.5
    assert values["specray_draft_busy_seconds", "prompt_lookup", "ahead"] == 0.5
    metrics.publish(EngineStats(4, 11, 44, 1, 2, 0.75, num_ahead=30, ahead_s=0.6))  # amid a turn
    metrics.publish(EngineStats(4, 11, 44, 1, 2, 0.9, num_ahead=30, ahead_s=0.6))
    assert values["specray_draft_busy_seconds", "prompt_lookup", "answers"] == 0.5
    assert values["specray_draft_sessions", "prompt_lookup"] == 4


def test_ray_takes_the_names_tags_and_values() -> None:
    stats = target_stats(num_committed=3, num_misses=1, step_time=durations(0.03))
    TargetMetrics().publish(stats)
    traffic = Traffic()
    traffic.observe(100, 0.001)
    RelayMetrics().publish(RelayStats(("t",), (), {}, 0, {"no_draft": 1}, traffic, traffic))
    DraftMetrics("model").publish(EngineStats(1, 1, 1, 1, 1, 1.0))


def test_what_the_controller_wants_is_told_by_pool(instruments: Instruments) -> None:
    metrics = ControllerMetrics(instruments=instruments)
    wanted = Decision("draft", 3, 1, "more requests")
    metrics.publish(
        Decisions(
            Decision("depth ceiling", 4, 5, ""), Decision("fan-out", 2, 8, ""), {"draft": wanted}
        )
    )
    metrics.count(wanted)

    assert instruments.values["specray_wanted_replicas", "draft"] == 3
    assert instruments.values["specray_ceiling", "depth"] == 4
    assert instruments.values["specray_ceiling", "fan_out"] == 2
    assert instruments.values["specray_decisions", "draft"] == 1


def test_a_refused_user_config_is_reported(instruments: Instruments) -> None:
    metrics = UserConfigMetrics(instruments)
    for is_refused in (True, False):
        metrics.publish(is_refused=is_refused)
        assert instruments.values["specray_user_config_refused",] == is_refused
