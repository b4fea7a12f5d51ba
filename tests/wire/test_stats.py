from specray.wire.stats import BUCKETS_S, Durations


def test_a_duration_falls_into_the_bucket_that_bounds_it() -> None:
    durations = Durations()
    for seconds in (0.00005, 0.0001, 0.00011, 10.0, 11.0):
        durations.observe(seconds)

    assert durations.buckets[:2] == [2, 1]
    assert durations.buckets[-1] == 1
    assert sum(durations.buckets) == 4  # what exceeds the last bound is only counted
    assert durations.count == 5
    assert durations.sum_s == 0.00005 + 0.0001 + 0.00011 + 10.0 + 11.0


def test_buckets_span_a_tenth_of_a_millisecond_to_ten_seconds() -> None:
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (0.0001, 10.0)
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


def test_a_copy_does_not_follow() -> None:
    durations = Durations()
    before = durations.copy()
    durations.observe(1.0)

    assert before == Durations()
