import itertools

import numpy as np
import pytest

from specray.distill.formulas import Depth, best_depth, expected_speeds, survival


def test_greedy_chains_survive_as_long_as_draft_and_target_agree() -> None:
    agrees = np.array([1.0, 1.0, 0.0, 1.0])

    chances = survival(agrees, 3)

    assert chances == pytest.approx([3 / 4, 1 / 3, 0])


def test_a_chain_longer_than_the_text_never_survives() -> None:
    assert survival(np.array([1.0]), 2) == pytest.approx([1, 0])


def test_sampled_chains_survive_as_often_as_the_distributions_overlap() -> None:
    """Over all texts of a Markov chain, weighted by p, against the sum over paths of min(p, q)."""
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.25, 0.25]])
    q = np.array([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])
    wanted, found = 0.0, 0.0
    for path in itertools.product(range(3), repeat=3):
        steps = list(zip((0, *path), path, strict=False))
        wanted += float(np.prod([min(p[s], q[s]) for s in steps]))
        ratios = np.array([min(1.0, q[s] / p[s]) for s in steps])
        found += float(np.prod([p[s] for s in steps])) * survival(ratios, 3)[2]

    assert found == pytest.approx(wanted)


def test_tokens_per_step_and_speedup() -> None:
    speeds = expected_speeds([0.5, 0.25], cost_ratio=0.1)

    assert speeds == [
        Depth(1, 1.5, pytest.approx(1.5 / 1.1)),
        Depth(2, 1.75, pytest.approx(1.75 / 1.2)),
    ]


def test_the_best_depth_weighs_tokens_against_their_cost() -> None:
    assert best_depth(expected_speeds([0.8, 0.6, 0.1], 0.1)).depth == 2


def test_a_draft_that_does_not_pay_is_left_alone() -> None:
    assert best_depth(expected_speeds([0.1, 0.01], 0.5)) == Depth(0, 1.0, 1.0)
