"""The service's own slow loop in simulated clusters."""

from dataclasses import dataclass, replace
from itertools import chain, repeat

import numpy as np
import pytest

from specray.config import ObjectiveConfig
from specray.control.roofline import StepLoad
from specray.simulate.agreement import Agreement, AgreementModel, ByPlace
from specray.simulate.arrivals import Arrival
from specray.simulate.cluster import ClusterSettings, Run, simulate
from specray.simulate.draft import DraftSettings
from specray.simulate.pools import PoolSettings
from specray.simulate.summary import summarise
from specray.types import SpeculationPolicy
from tests.simulate.scenarios import cluster, requests

EACH_S = 0.002  # of a session in a pass
FROM_S, UNTIL_S = 14.0, 24.0  # that count
OBJECTIVE = ObjectiveConfig(draft_cost=0.1)
GOOD, BAD = ByPlace((0.85,)), ByPlace((0.02,))


@dataclass(frozen=True)
class EachCosts:
    """Steps whose time is that of their requests."""

    each_s: float

    def step_s(self, load: StepLoad) -> float:
        return self.each_s * load.num_requests


def settings(num_targets: int, num_drafts: int = 1, **pool: float) -> ClusterSettings:
    base = cluster(num_targets=num_targets, num_drafts=num_drafts, max_num_seqs=16)
    return replace(
        base,
        target=replace(base.target, policy=SpeculationPolicy(max_wait_ms=100.0)),
        draft=DraftSettings(EachCosts(EACH_S)),
        pool=PoolSettings(OBJECTIVE, period_s=2.0, **pool),  # type: ignore[arg-type]
    )


def steady(
    at_once: int, pool: ClusterSettings, agreement: AgreementModel = GOOD, until_s: float = UNTIL_S
) -> Run:
    many = requests([Arrival(0.0, 16, 200)] * 12 * at_once, agreement)
    return simulate(pool, many, num_at_once=at_once, until_s=until_s)


class Easier:
    """The first requests can't be foreseen; the others can."""

    def __init__(self, num_hard: int) -> None:
        self._laws = chain(repeat(BAD, num_hard), repeat(GOOD))

    def draw(self, rng: np.random.Generator, num_tokens: int) -> Agreement:
        return next(self._laws).draw(rng, num_tokens)


def last_sizes(run: Run) -> set[int]:
    return {size.num_drafts for size in run.sizes[-3:]}


def test_the_pool_comes_near_the_best_that_a_fixed_one_could_be() -> None:
    """By goodput less what drafts cost, in targets that do not speculate."""
    off = replace(settings(2), target=cluster(is_enabled=False).target, pool=None)
    per_target = summarise(steady(8, off), FROM_S, UNTIL_S).tokens_per_s / 2

    def net(run: Run, num_drafts: float) -> float:
        goodput = summarise(run, FROM_S, UNTIL_S).tokens_per_s
        return goodput / per_target - OBJECTIVE.draft_cost * num_drafts

    fixed = [net(steady(8, replace(settings(2, n), pool=None)), n) for n in (1, 2, 4, 8)]
    ours = steady(8, settings(2))
    counted = [size.num_drafts for size in ours.sizes if size.at_s > FROM_S]

    assert net(ours, sum(counted) / len(counted)) > 0.93 * max(fixed)
    assert fixed[0] < 0.9 * max(fixed)  # so that it is worth deciding


def test_more_requests_bring_more_drafts_and_none_at_all_takes_them_away() -> None:
    quiet, busy = steady(1, settings(2)), steady(12, settings(2))
    idle = simulate(settings(2, 4), requests([Arrival(0.0, 16, 50)], GOOD), until_s=UNTIL_S)

    assert last_sizes(quiet) == {1}
    assert min(last_sizes(busy)) > 1
    assert last_sizes(idle) == {0}


def test_drafts_that_are_never_right_are_not_kept() -> None:
    run = steady(4, settings(2, 3), BAD, until_s=60.0)

    assert max(last_sizes(run)) <= 1  # one comes back for a trial
    assert 0 in {size.num_drafts for size in run.sizes}


def test_drafts_that_were_given_up_come_back_when_texts_are_easier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specray.control.draft_trial._FIRST_PAUSE_S", 20.0)

    run = steady(4, settings(2, 3), Easier(12), until_s=70.0)  # before the last ones end

    sizes = [size.num_drafts for size in run.sizes]
    assert 0 in sizes
    assert min(sizes[-3:]) > 1


@pytest.mark.parametrize("bounds", [{"min_drafts": 2}, {"max_drafts": 2}])
def test_bounds_bind(bounds: dict[str, int]) -> None:
    run = steady(12 if "max_drafts" in bounds else 1, settings(2, **bounds))

    assert last_sizes(run) == {2}


def test_every_request_is_answered_whatever_the_pool_does() -> None:
    waves = [Arrival(30.0 * (i // 12) + 0.01 * i, 16, 200) for i in range(24)]
    run = simulate(settings(2, start_s=1.0), requests(waves, GOOD), until_s=60.0)

    assert len({size.num_drafts for size in run.sizes}) > 2
    assert [request.num_answered for request in run.requests] == [200] * 24
