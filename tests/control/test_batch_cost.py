import pytest

from specray.control.batch_cost import BatchCost


def learnt(fixed_s: float, each_s: float, sizes: list[int]) -> BatchCost:
    cost = BatchCost()
    for size in sizes:
        cost.observe(size, fixed_s + each_s * size)
    return cost


def test_it_finds_both_parts_where_sizes_vary() -> None:
    cost = learnt(0.010, 0.002, [1, 4, 16, 8, 2, 12] * 100)

    assert cost.fixed_s == pytest.approx(0.010, rel=0.1)
    assert cost.per_item_s == pytest.approx(0.002, rel=0.1)


@pytest.mark.parametrize("size", [1, 8])
def test_of_one_size_it_believes_that_half_is_fixed(size: int) -> None:
    cost = learnt(0.010, 0.0, [size] * 100)

    assert cost.fixed_s == pytest.approx(0.005)
    assert cost.per_item_s * size == pytest.approx(0.005)


def test_it_follows_a_change() -> None:
    cost = learnt(0.010, 0.002, [1, 4, 16, 8] * 100)
    for size in [1, 4, 16, 8] * 1000:
        cost.observe(size, 0.050)

    assert cost.fixed_s == pytest.approx(0.050, rel=0.1)
    assert cost.per_item_s == pytest.approx(0.0, abs=0.0005)


def test_no_part_is_negative() -> None:
    cost = BatchCost()
    for size, seconds in [(1, 0.1), (8, 0.01)] * 50:  # larger ones are faster
        cost.observe(size, seconds)

    assert cost.per_item_s == 0.0
    assert cost.fixed_s == pytest.approx(0.055, rel=0.1)


def test_what_grows_with_every_item_may_be_divided_and_what_does_not_may_not() -> None:
    sizes = [1, 4, 16, 8] * 100

    assert learnt(0.0, 0.002, sizes).divisible_size == 1
    assert 15 <= learnt(0.008, 0.002, sizes).divisible_size <= 20
    assert learnt(0.010, 0.0, sizes).divisible_size >= 100
    assert BatchCost().divisible_size > 1000


def test_what_has_faded_still_holds_but_yields_to_what_comes_next() -> None:
    cost = learnt(0.010, 0.002, [1, 4, 16, 8] * 100)
    before_s = [cost.expected_s(size) for size in (1, 8, 16)]
    cost.fade()

    assert [cost.expected_s(size) for size in (1, 8, 16)] == before_s
    cost.observe(8, 0.002)
    assert cost.expected_s(8) < 0.6 * before_s[1]


def test_what_is_forgotten_counts_no_more() -> None:
    cost = learnt(0.010, 0.002, [1, 4, 16, 8] * 100)
    cost.forget()
    assert cost.expected_s(8) == 0.0
    cost.observe(8, 0.001)
    cost.observe(4, 0.001)
    assert cost.expected_s(8) <= 0.0015
