from itertools import pairwise

from specray.control.plain_turns import PlainTurns


def turns(plain_turns: PlainTurns, num_requests: int, num_steps: int) -> list[int]:
    """Which of so many steps are plain ones, where drafts always seem to pay."""
    taken = []
    for step in range(num_steps):
        is_plain = plain_turns.take(num_requests)
        plain_turns.observe(num_requests, is_plain=is_plain)
        taken += [step] if is_plain else []
    return taken


def test_they_come_soon_and_then_rarely() -> None:
    taken = turns(PlainTurns(), 4, 1000)

    pauses = [later - earlier for earlier, later in pairwise(taken)]
    assert taken[0] == 16
    assert pauses[:3] == [33, 65, 129]
    assert set(pauses[3:]) == {129}


def test_none_is_taken_where_steps_without_drafts_come_anyway() -> None:
    plain_turns = PlainTurns()
    for _ in range(100):
        assert turns(plain_turns, 4, 15) == []
        plain_turns.observe(4, is_plain=True)


def test_each_size_of_load_has_its_own() -> None:
    plain_turns = PlainTurns()
    turns(plain_turns, 1, 500)

    assert not plain_turns.take(8)
    assert turns(plain_turns, 8, 17) == [16]
