import pytest

from loadtest.measured_steps import MeasuredSteps
from specray.control.roofline import StepLoad

TABLE = MeasuredSteps((1, 4), (1, 3), ((0.1, 0.2), (0.4, 0.8)))


@pytest.mark.parametrize(
    ("num_requests", "num_tokens", "seconds"),
    [
        (1, 1, 0.1),
        (1, 3, 0.2),
        (4, 12, 0.8),
        (1, 2, 0.15),
        (2, 2, 0.2),
        (4, 8, 0.6),
        (7, 7, 0.7),  # beyond the last row along its slope
        (1, 7, 0.2 + 4 * 0.05),  # a token more in the fullest step costs (0.8 - 0.4) / (4 * 2)
        (4, 14, 0.8 + 2 * 0.05),
    ],
)
def test_steps_lie_between_those_measured(
    num_requests: int, num_tokens: int, seconds: float
) -> None:
    assert TABLE.step_s(StepLoad(num_requests, num_tokens, 0)) == pytest.approx(seconds)


def test_a_machine_may_differ_by_rows() -> None:
    slower = MeasuredSteps((1, 4), (1, 3), TABLE.seconds, (2.0, 3.0))

    assert slower.step_s(StepLoad(1, 1, 0)) == pytest.approx(0.2)
    assert slower.step_s(StepLoad(4, 4, 0)) == pytest.approx(1.2)
    assert slower.step_s(StepLoad(1, 4, 0)) == pytest.approx(0.4 + 3 * 0.05)


def test_tokens_of_prompts_may_have_a_price_of_their_own() -> None:
    law = MeasuredSteps((1, 4), (1, 3), TABLE.seconds, (2.0, 3.0), prefill_token_s=0.01)

    assert law.step_s(StepLoad(1, 1, 100)) == pytest.approx(2.0 * 0.1)
    assert law.step_s(StepLoad(1, 50, 100, 0, 49)) == pytest.approx(2.0 * 0.1 + 0.49)
    assert law.step_s(StepLoad(4, 4 + 64, 100, 0, 64)) == pytest.approx(3.0 * 0.4 + 0.64)
