import copy

import pytest

from specray.control.reports import WINDOW_S, TargetReporter, Window
from specray.types import SourceStats
from specray.wire.stats import EngineLoad, Prospect, RooflineStats, TargetStats


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_window_reaches_back_to_its_begin(clock: Clock) -> None:
    window: Window[int] = Window(clock, length_s=3.0)
    for counted in range(8):
        clock.now = float(counted)
        samples = window.add(counted)

    assert [sample.counters for sample in samples] == [4, 5, 6, 7]
    clock.now = 100.0
    assert [sample.counters for sample in window.add(8)] == [7, 8]  # there is nothing nearer


def started() -> TargetStats:
    stats = TargetStats(sources={"model": SourceStats(100, 50, [60, 40], [40, 10])})
    stats.load = EngineLoad(num_running=4, num_waiting=2, max_running=8, kv_usage=0.5, busy_s=2.0)
    stats.roofline = RooflineStats(3.0, 10.0, "H100")
    stats.prospect = Prospect(1.8, 0.02)
    return stats


def later(stats: TargetStats) -> TargetStats:
    """Ten seconds of work."""
    after = copy.deepcopy(stats)
    after.num_steps += 100
    after.num_request_steps += 400
    after.num_committed += 1000
    after.num_hits, after.num_late, after.num_absent = 150, 40, 10
    counts = after.sources["model"]
    counts.num_proposed, counts.num_accepted = 700, 350
    counts.proposed_per_position, counts.accepted_per_position = [360, 240], [280, 110]
    for _ in range(100):
        after.step_time.observe(0.05)
        after.wait_time.observe(0.01)
    after.relay_time.observe(0.002)
    load = after.load
    load.num_running, load.num_arrived, load.decode_s, load.num_decoded = 6, 20, 40.0, 800
    load.busy_s += 6.0
    load.first_token_time.observe(0.25)
    return after


def test_a_report_is_about_the_last_seconds(clock: Clock) -> None:
    reporter = TargetReporter("target:a", clock)
    reporter.report(started())
    clock.now = WINDOW_S
    report = reporter.report(later(started()))

    assert (report.deployment, report.max_running) == ("target:a", 8)
    assert (report.num_running, report.num_waiting, report.kv_usage) == (5.0, 2.0, 0.5)
    assert (report.requests_per_s, report.tokens_per_s, report.asked_per_s) == (2.0, 100.0, 20.0)
    assert (report.hit_rate, report.late_rate, report.miss_rate) == (0.75, 0.2, 0.05)
    assert report.utilisation == pytest.approx(0.6)
    assert report.step_s == pytest.approx(0.05)
    assert report.wait_share == pytest.approx(0.1)
    assert report.relay_s == pytest.approx(0.002)
    assert report.ttft_s == pytest.approx(0.25)
    assert report.tpot_s == pytest.approx(0.05)
    assert (report.depth, report.acceptance) == (1.5, 0.5)
    assert report.survivals == pytest.approx((0.8, 0.5))
    assert (report.intensity, report.ridge) == (3.0, 10.0)
    assert (report.gain, report.gain_step_s) == (1.8, 0.02)


def test_of_an_idle_target_nothing_is_made_up(clock: Clock) -> None:
    reporter = TargetReporter("target:a", clock)
    first = reporter.report(TargetStats())
    clock.now = 1.0

    for report in (first, reporter.report(TargetStats())):
        assert report.tpot_s is None
        assert report.ttft_s is None
        assert (report.tokens_per_s, report.asked_per_s, report.hit_rate) == (0.0, 0.0, 0.0)
        assert report.utilisation == 0.0
        assert report.survivals == ()
