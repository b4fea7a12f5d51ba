import numpy as np
import pytest

from specray.control.loops import NUM_FEATURES, judging, taking


def logit(chance: float) -> float:
    return float(np.log(chance / (1 - chance)))


def test_survivals_are_those_of_a_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    depths, heads = np.array([4, 0, 2]), np.array([1, 0, 0])
    rates, temperatures = np.array([0.9, 0.5, 0.3]), np.array([0.0, 0.0, 0.7])
    confidences = np.array([[0.8, 0.6, 0.4, 0.2], [-1.0] * 4, [-1.0] * 4])
    coefficients = rng.normal(size=(2, NUM_FEATURES))
    features, survivals = np.full((3, 4, NUM_FEATURES), np.nan), np.full((3, 4), np.nan)

    judging()(depths, rates, temperatures, confidences, heads, coefficients, features, survivals)

    places = np.log([1, 2, 3, 4])
    assert features[0, :, 0] == pytest.approx(np.ones(4))
    assert features[0, :, 1] == pytest.approx([logit(0.9)] * 4)
    assert features[2, :, 2] == pytest.approx(places)
    assert features[2, :, 3] == pytest.approx([0.7] * 4)
    assert features[0, :, 4] == pytest.approx([logit(c) for c in (0.8, 0.6, 0.4, 0.2)])
    assert features[2, :, 4] == pytest.approx([0.0] * 4)
    chances = 1 / (1 + np.exp(-np.einsum("rpf,rf->rp", features, coefficients[heads])))
    assert survivals[0] == pytest.approx(np.cumprod(chances[0]))
    assert survivals[1] == pytest.approx(np.zeros(4))
    assert survivals[2] == pytest.approx([*np.cumprod(chances[2, :2]), 0.0, 0.0])


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, -4.0, -3.5), (1.0, 3.5, 4.0)])
def test_nothing_is_certain(rate: float, least: float, most: float) -> None:
    features, survivals = np.empty((1, 1, NUM_FEATURES)), np.empty((1, 1))
    one, coefficients = np.array([rate]), np.zeros((1, NUM_FEATURES))

    judging()(
        *(np.array([1]), one, np.zeros(1), one[:, None], np.array([0]), coefficients),
        *(features, survivals),
    )

    assert least < features[0, 0, 1] == features[0, 0, 4] < most


def test_takes_the_likeliest_while_each_raises_commits_per_second() -> None:
    survivals = np.array([[0.9, 0.5], [0.6, 0.0]])
    depths = np.zeros(2, np.intp)
    seconds = np.array([1.0, 1.1, 1.2, 1.6, 1.7])

    # 2 / 1, 2.9 / 1.1, 3.5 / 1.2, but 4 / 1.6
    taken = taking()(survivals, np.array([0, 2, 1, 3]), seconds, 2.0, 0.0, 1.0, depths)

    assert taken == (2, pytest.approx(3.5))
    assert depths.tolist() == [1, 1]


def test_what_is_never_accepted_is_not_taken_for_free() -> None:
    depths = np.zeros(1, np.intp)

    taken = taking()(np.array([[0.0, 0.0]]), np.array([0, 1]), np.ones(3), 1.0, 0.0, 1.0, depths)

    assert taken == (0, 1.0)
    assert depths.tolist() == [0]
