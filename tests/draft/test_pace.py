from specray.draft.pace import Pace


def settle(pace: Pace, rows_in_time: int, num_outcomes: int) -> list[int]:
    """The rows of passes of which those up to some size are done in time."""
    rows = []
    for _ in range(num_outcomes):
        rows.append(pace.most_rows)
        pace.observe(is_in_time=pace.most_rows <= rows_in_time)
    return rows


def test_it_begins_with_all_and_keeps_them_while_they_are_in_time() -> None:
    assert settle(Pace(16), 16, 50) == [16] * 50


def test_it_comes_down_to_what_is_done_in_time() -> None:
    rows = settle(Pace(16), 5, 400)[200:]
    assert 4 <= min(rows) <= max(rows) <= 6
    assert sum(row > 5 for row in rows) < 0.35 * len(rows)


def test_it_comes_back_when_there_is_more_time() -> None:
    pace = Pace(16)
    settle(pace, 3, 200)
    assert pace.most_rows <= 4
    settle(pace, 16, 60)
    assert pace.most_rows == 16


def test_there_is_always_a_row() -> None:
    assert settle(Pace(16), 0, 300)[-1] == 1
