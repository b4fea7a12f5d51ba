import itertools
import random

import pytest

from specray.control.ceilings import depth_ceiling, fan_out_ceiling
from specray.control.pool_model import DraftCosts, draft_costs
from specray.control.reports import DraftReport, TargetReport
from tests.control.reports_util import draft, target

MOST = 8


def depth(targets: list[TargetReport], drafts: list[DraftReport]) -> int:
    return depth_ceiling(targets, drafts, draft_costs(drafts, DraftCosts()), MOST, MOST).value


def test_what_nobody_waits_for_is_not_bounded() -> None:
    assert depth([target(hit_rate=1.0)], [draft(answer_each_s=0.5)]) == MOST
    assert depth([target()], [draft(answer_each_s=0.0, answer_fixed_s=0.0)]) == MOST


def test_deep_tokens_that_hardly_survive_are_not_worth_a_long_wait() -> None:
    bad, good = (0.5, 0.2, 0.05), (0.95, 0.9, 0.86)

    slow = [draft(answer_each_s=0.02)]
    assert 1 <= depth([target(survivals=bad)], slow) <= 2
    assert depth([target(survivals=good)], slow) > 2
    assert depth([target(survivals=bad)], [draft(answer_each_s=0.0001)]) > 2


def test_a_ceiling_rises_again_though_nothing_deeper_has_been_verified() -> None:
    shallow = target(survivals=(0.95,), depth=1.0)

    assert depth([shallow], [draft(answer_each_s=0.002, tokens_per_answer=1.0)]) > 4


def after(ceiling: int, rates: list[float]) -> list[int]:
    """The ceilings that follow it, where tokens are accepted at these rates."""
    drafts = [draft()]
    ceilings = []
    for rate in rates:
        targets = [target(survivals=tuple(rate**place for place in (1, 2, 3, 4)))]
        costs = draft_costs(drafts, DraftCosts())
        ceiling = depth_ceiling(targets, drafts, costs, ceiling, MOST).value
        ceilings.append(ceiling)
    return ceilings


@pytest.mark.parametrize("rate", [0.5, 0.6, 0.7, 0.8])
def test_the_ceiling_of_depth_does_not_waver(rate: float) -> None:
    rng = random.Random(0)
    ceilings = after(MOST, [rate + rng.gauss(0, 0.01) for _ in range(200)])

    assert sum(now != before for before, now in itertools.pairwise(ceilings)) <= 1


def test_the_ceiling_of_depth_follows_a_real_change() -> None:
    bad, good = after(MOST, [0.3] * 3), after(1, [0.9] * 3)

    assert max(bad) <= 2
    assert min(good) >= 5


@pytest.mark.parametrize(
    ("targets", "drafts"),
    [([], []), ([target()], []), ([], [draft()]), ([target(depth=0.0, survivals=())], [draft()])],
)
def test_what_is_not_known_bounds_nothing(
    targets: list[TargetReport], drafts: list[DraftReport]
) -> None:
    assert depth(targets, drafts) == MOST


@pytest.mark.parametrize(("needed", "most"), [(0.0, 8), (0.5, 8), (0.75, 4), (0.9, 2), (1.0, 0)])
def test_busy_drafts_prepare_for_fewer_outcomes(needed: float, most: int) -> None:
    decision = fan_out_ceiling([draft(needed=0.1), draft(needed=needed)], 8, 8)

    assert decision.value == most
    assert decision.before == 8


@pytest.mark.parametrize("most", [8, 64])
@pytest.mark.parametrize("needed", [0.74, 0.77, 0.82])
def test_the_ceiling_of_outcomes_does_not_waver(most: int, needed: float) -> None:
    assert fan_out_ceiling([draft(needed=needed)], most // 2, most).value == most // 2
