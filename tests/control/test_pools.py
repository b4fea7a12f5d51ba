import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.config import ObjectiveConfig
from specray.control.pool_model import DraftCosts
from specray.control.pools import Decision, wanted_drafts, wanted_targets
from specray.control.reports import TargetReport
from tests.control.reports_util import idle, target

THROUGHPUT = ObjectiveConfig()
LATENCY = ObjectiveConfig(goal="latency")
SLOW = DraftCosts(each_s=0.01)


def drafts(
    targets: list[TargetReport],
    num_drafts: int,
    costs: DraftCosts = SLOW,
    objective: ObjectiveConfig = THROUGHPUT,
) -> int:
    return wanted_drafts("draft", targets, num_drafts, costs, objective).value


def settled(targets: list[TargetReport], num_drafts: int, **options: object) -> int:
    """Where deciding again and again ends."""
    for _ in range(20):
        num_drafts = drafts(targets, num_drafts, **options)  # type: ignore[arg-type]
    return num_drafts


def test_more_requests_want_more_drafts_and_fewer_want_fewer() -> None:
    quiet, busy = [target(num_running=1.0)], [target(num_running=8.0)] * 2

    assert settled(quiet, 1) == 1
    many = settled(busy, 1)
    assert many >= 3
    assert settled(quiet, many) == 1


def test_it_is_demand_for_speculation_that_counts_and_not_requests() -> None:
    busy = target(num_running=8.0)

    assert settled([busy], 1, costs=DraftCosts()) == 1  # one draft is fast enough
    drafted_ahead = target(num_running=8.0, hit_rate=1.0)
    assert settled([drafted_ahead], 1) == 1  # nobody waits


def test_there_is_no_draft_for_those_who_do_not_want_one() -> None:
    useless = target(gain=1.0, num_running=8.0)

    assert drafts([idle()], 3) == 0
    assert drafts([useless], 3) == 0
    assert drafts([target()], 0, costs=DraftCosts()) == 1  # and back


def test_a_dearer_draft_must_bring_more() -> None:
    busy = [target(num_running=8.0)] * 2

    sizes = [
        settled(busy, 1, objective=ObjectiveConfig(draft_cost=cost)) for cost in (0.02, 0.1, 1.5)
    ]
    assert sizes[0] > sizes[1] > sizes[2] == 0


def test_latency_counts_no_cost() -> None:
    busy = [target(num_running=8.0)] * 2

    assert settled(busy, 1, objective=LATENCY) > settled(busy, 1)
    assert settled([idle()], 3, objective=LATENCY) == 0


@pytest.mark.parametrize(("tpot_ms", "is_met"), [(60.0, True), (45.0, True), (5.0, False)])
def test_an_slo_takes_as_few_drafts_as_meet_it(tpot_ms: float, is_met: bool) -> None:
    busy = [target(num_running=8.0, tpot_s=0.06)]
    objective = ObjectiveConfig(goal="slo", tpot_ms=tpot_ms)
    wanted = drafts(busy, 1, objective=objective)

    if tpot_ms == 60.0:
        assert wanted == 1
    elif is_met:
        assert 1 < wanted <= drafts(busy, 1, objective=LATENCY)
    else:  # as much as there is to be had
        assert wanted == drafts(busy, 1, objective=LATENCY)


@given(
    st.floats(0, 16), st.floats(1, 4), st.floats(0, 0.1), st.integers(0, 8), st.floats(-0.05, 0.05)
)
def test_small_changes_do_not_move_a_pool_back_and_forth(
    running: float, gain: float, each_s: float, num_drafts: int, noise: float
) -> None:
    costs = DraftCosts(each_s=each_s)
    end = settled([target(num_running=running, gain=gain)], num_drafts, costs=costs)
    moved = settled([target(num_running=running, gain=gain * (1 + noise))], end, costs=costs)
    back = settled([target(num_running=running, gain=gain)], moved, costs=costs)

    assert settled([target(num_running=running, gain=gain)], back, costs=costs) == back


def test_a_decision_tells_what_it_follows_from() -> None:
    decision = wanted_drafts("draft", [target(num_running=8.0)], 1, SLOW, THROUGHPUT)
    inputs = dict(decision.inputs)

    assert decision.before == 1
    assert inputs["requests"] == 8.0
    assert inputs["goodput_one_more"] > inputs["goodput_now"]
    assert "goodput over 1" in decision.reason


def targets(reports: list[TargetReport], objective: ObjectiveConfig = THROUGHPUT) -> Decision:
    return wanted_targets("target:a", reports, objective)


@pytest.mark.parametrize(
    ("reports", "wanted", "cause"),
    [
        ([target(num_running=4.0)], 1, "places"),
        ([target(num_running=8.0, num_waiting=4.0)], 2, "places"),
        ([target(num_running=8.0, num_waiting=400.0)], 2, "places"),  # doubled at most
        ([target(num_running=8.0)] * 2, 3, "places"),
        ([target(num_running=2.0, kv_usage=0.95)], 2, "KV cache"),
        ([target(num_running=5.5)] * 2, 2, "places"),  # too much for one
        ([target(num_running=0.5, kv_usage=0.02)] * 3, 1, "places"),
        ([idle(kv_usage=0.0)] * 2, 0, "no requests"),
    ],
)
def test_targets_follow_queue_and_memory(
    reports: list[TargetReport], wanted: int, cause: str
) -> None:
    decision = targets(reports)

    assert decision.value == wanted
    assert cause in decision.reason


def test_latency_keeps_places_free() -> None:
    reports = [target(num_running=6.0)]

    assert targets(reports).value == 1
    assert targets(reports, LATENCY).value == 2


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"tpot_s": 0.050, "ttft_s": 0.2}, 1),
        ({"tpot_s": 0.080, "ttft_s": 0.2}, 2),
        ({"tpot_s": 0.050, "ttft_s": 1.5}, 2),
        ({"tpot_s": 0.080, "ttft_s": 0.2, "num_running": 1.0}, 1),  # another would not help it
        ({"tpot_s": 0.050, "ttft_s": 1.5, "num_running": 1.0}, 1),  # nor this one
        ({"tpot_s": None, "ttft_s": None}, 1),
    ],
)
def test_an_slo_is_met_by_targets_too(changes: dict[str, float | None], wanted: int) -> None:
    objective = ObjectiveConfig(goal="slo", tpot_ms=60.0, ttft_ms=1000.0)

    assert targets([target(**changes)], objective).value == wanted


@given(st.integers(1, 8), st.floats(0, 200), st.floats(0, 1))
def test_a_steady_load_comes_to_rest(num_targets: int, load: float, kv: float) -> None:
    """Requests spread evenly; a queue is there only while there are no places."""
    seen = []
    for _ in range(20):
        each = load / num_targets
        report = target(
            num_running=min(8.0, each), num_waiting=max(0.0, each - 8), kv_usage=min(1.0, kv * each)
        )
        num_targets = max(1, targets([report] * num_targets).value)
        seen.append(num_targets)

    assert seen[-1] == seen[-2]


@pytest.mark.parametrize("goal", ["throughput", "latency"])
@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_no_more_are_wanted_than_there_may_be(goal: str, num_drafts: int) -> None:
    busy = [target(num_running=8.0)] * 2
    objective = ObjectiveConfig.model_validate({"goal": goal})

    assert drafts(busy, 1, objective=objective) > 2  # were it not for the bound
    assert wanted_drafts("draft", busy, num_drafts, SLOW, objective, most=2).value in (
        2,
        num_drafts,
    )


def test_times_to_the_first_token_want_no_drafts_of_their_own() -> None:
    busy = [target(num_running=8.0)] * 2
    objective = ObjectiveConfig(goal="slo", ttft_ms=100.0)

    assert settled(busy, 1, objective=objective) == settled(busy, 1)
