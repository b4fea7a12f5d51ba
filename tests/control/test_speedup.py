import pytest

from specray.control.speedup import (
    StepTimes,
    block_efficiencies,
    depth_figures,
    recommended_depth,
)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
def test_equal_rates_give_the_closed_form(rate: float) -> None:
    for depth, efficiency in enumerate(block_efficiencies([rate] * 6)):
        closed = depth + 1 if rate == 1 else (1 - rate ** (depth + 1)) / (1 - rate)
        assert efficiency == pytest.approx(closed)


def test_a_chain_survives_the_product_of_its_rates() -> None:
    assert block_efficiencies([0.5, 0.8]) == pytest.approx([1, 1.5, 1.9])


def test_figures_by_hand() -> None:
    times = StepTimes(target_token_s=0.1, verification_s=[0.12, 0.15], draft_token_s=0.025)

    first, second = depth_figures([0.5, 0.8], size_ratio=0.1, times=times)

    assert first == pytest.approx((1, 1.5, 1.5 / 1.1, 0.15 / 0.125, 0.15 / (0.025 + 0.12)))
    assert second == pytest.approx((2, 1.9, 1.9 / 1.2, 0.19 / 0.15, 0.19 / (0.05 + 0.15)))


def test_the_size_speaks_while_nothing_is_timed() -> None:
    untimed = depth_figures([0.9] * 8, size_ratio=0.05, times=None)
    slow = depth_figures([0.9] * 8, 0.05, StepTimes(0.1, [0.1] * 8, 0.04))

    assert [figure.speedup for figure in untimed] == [figure.mbsu for figure in untimed]
    assert recommended_depth(untimed) == 8
    assert recommended_depth(slow) == 4


def test_no_depth_is_recommended_where_none_pays() -> None:
    assert recommended_depth(depth_figures([0.3] * 4, size_ratio=0.5, times=None)) == 0
