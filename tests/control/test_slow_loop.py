from dataclasses import replace
from typing import Any

from specray.config import ObjectiveConfig
from specray.control.slow_loop import ByHand, SlowLoop
from tests.control.reports_util import draft, idle, target

FULL = target(num_running=8.0, num_waiting=8.0)
FREE = ByHand()


def loop(**changes: Any) -> SlowLoop:
    limits: dict[str, Any] = {"draft_pool": "draft", "max_depth": 5, "max_fan_out": 8}
    return SlowLoop(ObjectiveConfig(), **limits | changes)


def sizes(loop: SlowLoop) -> dict[str, int]:
    return {name: decision.value for name, decision in loop.decisions.num_replicas.items()}


def test_before_any_report_nothing_is_wished_for_and_nothing_bounded() -> None:
    started = loop()

    assert sizes(started) == {}
    started.decide([], [], FREE)
    assert sizes(started) == {}
    assert started.decisions.max_depth.value == 5
    assert started.decisions.max_fan_out.value == 8


def test_each_model_has_a_pool_of_its_own_and_all_share_the_drafts() -> None:
    deciding = loop()
    deciding.decide([FULL, idle(deployment="target:b", kv_usage=0.0)], [draft()], FREE)

    assert sizes(deciding) == {"target:a": 2, "target:b": 0, "draft": 2}
    assert [d.subject for d in deciding.decisions.all()] == [
        *("draft", "target:a", "target:b"),
        *("depth ceiling", "fan-out ceiling"),
    ]


def test_without_a_draft_pool_there_is_no_wish_for_it() -> None:
    deciding = loop(draft_pool=None)
    deciding.decide([FULL], [], FREE)

    assert set(sizes(deciding)) == {"target:a"}


def test_what_answers_cost_is_remembered_while_there_are_no_drafts() -> None:
    slow = draft(answer_each_s=1.0)
    deciding = loop()
    deciding.decide([target()], [slow], FREE)
    assert sizes(deciding)["draft"] == 0
    deciding.decide([target()], [], FREE)
    assert sizes(deciding)["draft"] == 0

    fresh = loop()  # a controller that has been replaced, and knows of no cost
    fresh.decide([target()], [], FREE)
    assert sizes(fresh)["draft"] == 1


def test_while_frozen_nothing_moves() -> None:
    deciding = loop()
    deciding.decide([FULL], [draft()], FREE)
    before = deciding.decisions
    deciding.decide([idle()], [], ByHand(is_frozen=True))

    assert deciding.decisions == before
    deciding.decide([idle()], [draft()], FREE)
    assert deciding.decisions != before


def test_numbers_chosen_by_hand_hold_frozen_or_not() -> None:
    by_hand = {"draft": 7}
    deciding = loop()
    deciding.decide([FULL], [draft()], ByHand(num_replicas=by_hand, max_fan_out=3))
    assert sizes(deciding) == {"draft": 7, "target:a": 2}
    assert deciding.decisions.max_fan_out.value == 3
    assert deciding.decisions.num_replicas["draft"].before == 1

    frozen = loop()
    frozen.decide([FULL], [draft()], ByHand(is_frozen=True, num_replicas=by_hand, max_fan_out=99))
    assert sizes(frozen) == {"draft": 7}
    assert frozen.decisions.max_fan_out.value == 8
    deciding.decide([FULL], [draft()], FREE)
    assert sizes(deciding)["draft"] != 7


def test_what_is_no_longer_chosen_by_hand_is_again_as_it_was_frozen() -> None:
    deciding = loop()
    deciding.decide([FULL], [draft()], FREE)
    before = deciding.decisions
    deciding.decide([FULL], [draft()], ByHand(True, {"draft": 7, "other": 1}, max_fan_out=3))
    assert deciding.decisions != before
    deciding.decide([FULL], [draft()], ByHand(is_frozen=True))

    assert deciding.decisions == before


def test_how_much_is_drafted_ahead_is_remembered_while_there_are_no_drafts() -> None:
    """Else drafts that pay by drafting ahead alone would never come back from 0."""
    ahead = target(gain=1.8, gain_step_s=0.02, hit_rate=0.8, num_running=1.0)
    deciding = loop()
    deciding.decide([ahead], [draft(answer_each_s=0.02)], FREE, max_wait_s=0.02)
    assert sizes(deciding)["draft"] == 1
    deciding.decide([idle()], [draft(answers_per_s=0.0)], FREE, max_wait_s=0.02)
    assert sizes(deciding)["draft"] == 0
    unasked = replace(ahead, asked_per_s=0.0, hit_rate=0.0)
    deciding.decide([unasked], [], FREE, max_wait_s=0.02)
    assert sizes(deciding)["draft"] == 1


def test_drafts_follow_targets_that_have_gone() -> None:
    deciding = loop()
    deciding.decide([idle(kv_usage=0.0)], [draft()], FREE)
    assert sizes(deciding) == {"target:a": 0, "draft": 0}
    deciding.decide([], [draft()], FREE)
    assert sizes(deciding)["draft"] == 0


USELESS = target(gain=0.9)


def on_trial(now: list[float], **changes: Any) -> SlowLoop:
    """Ten minutes without drafts, which are believed to be of no use."""
    deciding = loop(clock=lambda: now[0], **changes)
    for now[0] in range(0, 610, 10):
        deciding.decide([USELESS], [], FREE)
    return deciding


def test_drafts_that_were_given_up_are_tried_again() -> None:
    now = [0.0]
    deciding = on_trial(now)

    assert sizes(deciding)["draft"] == 1
    assert deciding.decisions.num_replicas["draft"].reason.startswith("on trial")
    deciding.decide([USELESS], [draft()] * 2, FREE)
    assert sizes(deciding)["draft"] == 1  # and not more than one, whatever there is


def test_before_its_time_there_is_no_trial() -> None:
    now = [0.0]
    deciding = loop(clock=lambda: now[0])
    for now[0] in range(0, 600, 10):
        deciding.decide([USELESS], [], FREE)
        assert sizes(deciding)["draft"] == 0


def test_a_trial_ends_with_the_requests_or_the_targets() -> None:
    now = [0.0]
    deciding = on_trial(now)
    deciding.decide([idle(gain=0.9)], [draft()], FREE)
    assert sizes(deciding)["draft"] == 0

    deciding = on_trial(now)
    deciding.decide([], [draft()], FREE)
    assert sizes(deciding)["draft"] == 0


def test_nothing_is_tried_where_speculation_is_off_or_times_are_met_without() -> None:
    now = [0.0]
    deciding = loop(clock=lambda: now[0])
    for now[0] in range(0, 1000, 10):
        deciding.decide([USELESS], [], FREE, is_enabled=False)
    assert sizes(deciding)["draft"] == 0

    limits: dict[str, Any] = {"draft_pool": "draft", "max_depth": 5, "max_fan_out": 8}
    in_time = SlowLoop(ObjectiveConfig(goal="slo", tpot_ms=100.0), **limits, clock=lambda: now[0])
    for now[0] in range(0, 1000, 10):
        in_time.decide([USELESS], [], FREE)  # 60 ms a token
    assert sizes(in_time)["draft"] == 0
