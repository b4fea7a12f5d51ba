from collections.abc import Sequence

from specray.control.probes import PROBE_DEPTH, Probes

STEP_S = 0.05


def next_probe(
    probes: Probes, left_out: Sequence[int], *, takes_time: bool = False
) -> dict[int, int]:
    """Whom the next probe tries, and how deep."""
    for _ in range(200):
        probes.begin_step(0.0)
        if probed := probes.take(left_out, STEP_S, lambda _: 0.0, takes_time=lambda: takes_time):
            return dict(probed)
    raise AssertionError("no probe")


def test_all_take_turns() -> None:
    probes = Probes()
    probed = [sorted(next_probe(probes, range(6))) for _ in range(3)]

    assert probed == [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5]]


def test_who_surprised_is_tried_again() -> None:
    probes = Probes()
    next_probe(probes, range(6))
    probes.repeat()

    assert sorted(next_probe(probes, range(6))) == [0, 1, 2, 3]


def test_those_that_are_soon_probed_are_known() -> None:
    probes = Probes()
    told: set[int] = set()
    probed = {}
    while not probed:
        told |= probes.near
        probes.begin_step(0.0)
        probed = dict(probes.take([2, 5], STEP_S, lambda _: 0.0, takes_time=lambda: False))

    assert told == set(probed) == {2, 5}


def test_every_other_probe_is_short_where_the_second_token_takes_its_time() -> None:
    probes = Probes()
    depths = [next_probe(probes, [0], takes_time=True)[0] for _ in range(4)]
    assert depths == [1, PROBE_DEPTH] * 2

    depths = [next_probe(probes, [0], takes_time=False)[0] for _ in range(2)]
    assert depths == [PROBE_DEPTH] * 2


def test_a_load_at_which_it_can_not_pay_hastens_nothing() -> None:
    def steps_to_a_probe(*, may_pay: bool) -> int:
        probes = Probes()
        for _ in range(5):
            next_probe(probes, [0])  # so that pauses are long
        probes.heed_load(8, lambda: may_pay)
        steps = 1
        while not probes.take([0], STEP_S, lambda _: 0.0, takes_time=lambda: False):
            steps += 1
        return steps

    assert steps_to_a_probe(may_pay=False) == 128
    assert steps_to_a_probe(may_pay=True) == 8
