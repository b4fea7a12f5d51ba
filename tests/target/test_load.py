import pytest

from specray.target.load import LoadMeter, Queues
from specray.wire.stats import TargetStats


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> LoadMeter:
    return LoadMeter(lambda: TargetStats(num_steps=7), lambda: Queues(2, 3, 8, 0.5), clock)


def step(meter: LoadMeter, clock: Clock, seconds: float, grown: list[str], tokens: int) -> None:
    clock.now += seconds
    meter.observe_step(grown, tokens, 0.8 * seconds)  # the rest was waited


def test_it_completes_the_schedulers_counters(meter: LoadMeter) -> None:
    stats = meter.stats()

    assert stats.num_steps == 7
    assert (stats.load.num_running, stats.load.num_waiting, stats.load.max_running) == (2, 3, 8)
    assert stats.load.kv_usage == 0.5


def test_first_tokens_and_later_ones_are_timed_apart(meter: LoadMeter, clock: Clock) -> None:
    meter.observe_arrival("a")
    step(meter, clock, 0.5, ["a"], 1)
    step(meter, clock, 0.25, ["a"], 3)
    meter.observe_arrival("b")
    step(meter, clock, 0.25, ["a", "b"], 2)
    load = meter.stats().load

    assert load.num_arrived == 2
    assert (load.first_token_time.count, load.first_token_time.sum_s) == (2, 0.75)
    assert (load.decode_s, load.num_decoded) == (0.5, 4)


def test_time_in_steps_is_counted_without_what_is_between_them(
    meter: LoadMeter, clock: Clock
) -> None:
    step(meter, clock, 0.5, ["a"], 1)
    clock.now += 10.0
    step(meter, clock, 0.25, [], 0)  # a part of a prompt

    assert meter.stats().load.busy_s == pytest.approx(0.6)


def test_idle_time_is_nobodys(meter: LoadMeter, clock: Clock) -> None:
    step(meter, clock, 0.1, [], 0)
    clock.now += 1000.0
    meter.observe_arrival("a")
    step(meter, clock, 0.5, ["a"], 1)

    assert meter.stats().load.decode_s == 0.0


def test_a_request_may_end_with_its_first_token_or_without_one(
    meter: LoadMeter, clock: Clock
) -> None:
    meter.observe_arrival("short")
    meter.observe_arrival("aborted")
    meter.forget("aborted")
    meter.forget("short")
    step(meter, clock, 0.5, ["short"], 1)
    step(meter, clock, 0.5, ["aborted"], 1)  # of the same name, later
    load = meter.stats().load

    assert load.first_token_time.count == 1
    assert (load.decode_s, load.num_decoded) == (0.5, 1)
