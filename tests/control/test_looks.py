"""Looks whether speculation pays: rarer while they are in vain, at once where the load is new."""

from specray.control.looks import Looks


def looks_at(looks: Looks, loads: list[int], *, is_vain: bool = True) -> list[int]:
    """The steps that look, of those that so many requests decode in."""
    seen = []
    for step, num_decoding in enumerate(loads):
        if looks.is_due(num_decoding):
            looks.observe(num_decoding, is_vain=is_vain)
            seen.append(step)
    return seen


def test_each_step_looks_at_first_and_always_where_speculation_pays() -> None:
    assert looks_at(Looks(), [8] * 16) == list(range(16))
    assert looks_at(Looks(), [8] * 400, is_vain=False) == list(range(400))


def test_looks_in_vain_grow_rare_but_never_stop() -> None:
    looks = Looks()
    looks_at(looks, [8] * 400)

    assert len(looks_at(looks, [8] * 160)) == 10


def test_one_that_is_not_in_vain_makes_them_frequent_again() -> None:
    looks = Looks()
    looks_at(looks, [8] * 400)
    looks_at(looks, [8] * 16, is_vain=False)

    assert looks_at(looks, [8] * 16) == list(range(16))


def test_a_load_of_another_size_is_looked_at_at_once() -> None:
    looks = Looks()
    looks_at(looks, [8] * 400)

    assert looks_at(looks, [7, 6, 5, 4, 4])[0] == 3
    assert looks_at(looks, [4, 8]) == [1]


def test_after_it_others_follow_soon() -> None:
    """What pays at the new load may take some looks to find."""
    looks = Looks()
    looks_at(looks, [8] * 400)

    assert len(looks_at(looks, [1] * 64)) >= 16


def test_what_a_probe_has_brought_is_looked_at_in_the_next_step() -> None:
    looks = Looks()
    looks_at(looks, [8] * 400)
    looks.observe(8, is_vain=True)
    looks.hasten()

    assert looks_at(looks, [8] * 8) == [0]


def test_load_that_comes_and_goes_does_not_make_them_frequent() -> None:
    looks = Looks()
    looks_at(looks, [8] * 400)

    assert len(looks_at(looks, [*[8] * 16, *[2] * 16] * 10)) <= 80  # of 320, as if never rarer


def test_another_rule_is_looked_at_anew() -> None:
    looks = Looks()
    looks_at(looks, [8] * 400)
    looks.reset()

    assert looks_at(looks, [8] * 16) == list(range(16))
