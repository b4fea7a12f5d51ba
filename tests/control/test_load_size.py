import pytest

from specray.control.load_size import is_other_size


@pytest.mark.parametrize(("fewer", "more"), [(1, 2), (3, 6), (4, 9), (1, 64)])
def test_twice_as_many_or_half_are_another_load(fewer: int, more: int) -> None:
    assert is_other_size(fewer, more)
    assert is_other_size(more, fewer)


@pytest.mark.parametrize(("fewer", "more"), [(1, 1), (2, 3), (5, 8), (33, 64)])
def test_a_few_more_or_less_are_not(fewer: int, more: int) -> None:
    assert not is_other_size(fewer, more)
    assert not is_other_size(more, fewer)
