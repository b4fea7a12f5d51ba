import math

import pytest

from specray.target.patience import Patience
from specray.target.session import Session
from specray.types import SamplingSettings


def make_session() -> Session:
    tokens = [1, 2, 3]
    session = Session(*(1, "r", tokens, 3, 100, 5), SamplingSettings(), uses_distributions=True)
    session.committed_at, session.wanted_depth = 10.0, 5
    return session


def test_an_answer_is_expected_to_be_whole_before_one_has_come() -> None:
    assert Patience().expected_tokens(5) == 5


def test_an_answer_is_expected_to_be_as_long_as_they_were() -> None:
    """A draft that goes on ahead answers with a token or two."""
    patience, session = Patience(), make_session()
    for num_tokens in [1, 2] * 50:
        patience.observe_answer(session, 10.1, num_tokens)
    assert patience.expected_tokens(5) == 2
    assert patience.expected_tokens(1) == 1
    for _ in range(200):
        patience.observe_answer(session, 10.1, 5)
    assert patience.expected_tokens(5) == 5


def test_what_answers_lack_is_expected_of_shorter_ones_too() -> None:
    patience, session = Patience(), make_session()
    for _ in range(100):
        patience.observe_answer(session, 10.1, 2)
    assert [patience.expected_tokens(wanted) for wanted in (1, 2, 3, 5)] == [1, 1, 2, 2]


def test_a_step_waits_for_few_tokens_where_many_would_take_too_long() -> None:
    patience, session = Patience(), make_session()
    for num_tokens in [1, 2, 3, 4, 5] * 20:
        session.wanted_depth = num_tokens
        patience.observe_answer(session, 10.0 + 0.01 * num_tokens, num_tokens)
    assert patience.answer_s(0.025, 2) == pytest.approx(0.02, rel=0.1)
    assert patience.answer_s(0.025, 4) == math.inf
    assert patience.full_wait_s(0.025, 2) == pytest.approx(0.02, rel=0.1)
    assert patience.full_wait_s(0.025, 4) == math.inf

    for num_tokens in [2, 4] * 20:  # near the limit, so that many of these waits end too early
        session.wanted_depth = num_tokens
        patience.observe_answer(session, 10.0 + 0.01 * num_tokens, num_tokens)
        patience.observe_answer(session, 10.0 + 0.002 * num_tokens, num_tokens)
    assert math.isfinite(patience.answer_s(0.025, 4))
    assert patience.full_wait_s(0.025, 4) == math.inf


def test_where_drafts_mostly_get_ahead_slow_answers_are_no_reason_to_ask_for_less() -> None:
    patience, session = Patience(), make_session()
    for _ in range(40):
        patience.observe_answer(session, 10.1, 5)
    assert patience.full_wait_s(0.025, 5) == math.inf

    for _ in range(40):
        patience.observe_answer(session, 9.9, 5)  # here before its commit
    assert patience.full_wait_s(0.025, 5) < 0.2 * 0.025


def test_the_first_answer_after_a_pause_says_nothing_of_what_is_drafted_ahead() -> None:
    patience, session, resumed = Patience(), make_session(), make_session()
    resumed.is_resumed = True
    for _ in range(50):
        patience.observe_answer(session, 9.9, 2)
        patience.observe_answer(resumed, 10.1, 2)
        patience.observe_absence(resumed)
    assert patience.answer_s(1.0, 2) > 0.05
    assert patience.expected_wait_s(1.0, 2) < 0.01


def test_what_came_ahead_or_empty_says_nothing_of_answers() -> None:
    patience, session = Patience(), make_session()
    for _ in range(50):
        patience.observe_answer(session, 9.9, 1)
        patience.observe_answer(session, 10.1, 0)
    assert patience.expected_tokens(5) == 5


def test_what_was_seen_under_load_is_not_held_against_a_lone_request() -> None:
    patience, session = Patience(), make_session()
    patience.face(8)
    patience.ask(8)
    for _ in range(100):
        for _ in range(8):
            patience.observe_answer(session, 10.1, 5)
        patience.observe_step(8, 8, 0, is_trial=False)
    assert patience.expected_wait_s(1.0, 5) == pytest.approx(0.1)
    assert patience.chance < 0.1

    patience.face(1)
    assert patience.expected_wait_s(1.0, 5) == 0
    assert patience.chance == 1


@pytest.mark.parametrize("num_asked", [1, 2, 32])
def test_a_step_of_many_requests_says_no_more_than_one_of_few(num_asked: int) -> None:
    patience, session = Patience(), make_session()
    patience.face(32)  # of which some may be left alone
    patience.ask(num_asked)
    for _ in range(100):
        for _ in range(num_asked):
            patience.observe_answer(session, 9.9, 2)  # all are here before their commits
    for _ in range(num_asked):
        patience.observe_answer(session, 10.1, 2)  # but once
    assert patience.expected_wait_s(1.0, 2) == pytest.approx(0.05 * 0.1, rel=0.2)


def test_drafts_are_thought_to_get_ahead_again_ever_more_rarely() -> None:
    patience, session = Patience(), make_session()

    def tries_until_doubted() -> int:
        for _ in range(200):
            patience.observe_answer(session, 10.1, 5)  # never ahead
        for tries in range(1, 40):
            patience.give_a_chance(1.0, is_alone=False)
            if patience.full_wait_s(1.0, 5) < 0.08:  # of 0.1: a quarter may be ahead
                return tries
        raise AssertionError("never")

    assert [tries_until_doubted() for _ in range(7)] == [1, 2, 4, 8, 16, 16, 16]
    for _ in range(50):
        patience.observe_answer(session, 9.9, 5)  # ahead at last
    assert tries_until_doubted() == 1


def test_what_was_seen_of_few_requests_is_expected_of_more_until_they_are_seen() -> None:
    patience, session = Patience(), make_session()
    patience.face(2)
    for _ in range(100):
        patience.observe_answer(session, 10.1, 5)
    patience.face(8)
    assert patience.answer_s(1.0, 5) == pytest.approx(0.1)

    for _ in range(100):
        patience.observe_answer(session, 10.4, 5)
    assert patience.answer_s(1.0, 5) == pytest.approx(0.4, rel=0.05)
    patience.face(2)
    assert patience.answer_s(1.0, 5) == pytest.approx(0.1)
    patience.face(3)  # about as many
    assert patience.answer_s(1.0, 5) == pytest.approx(0.1)
    patience.face(12)
    assert patience.answer_s(1.0, 5) == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize("between", [8, 0])
def test_what_is_better_for_many_requests_is_not_worse_for_few(between: int) -> None:
    """A draft that was slow for long is found out at one load, not at each anew."""
    patience, session = Patience(), make_session()
    for num_requests in (1, 8):
        patience.face(num_requests)
        for _ in range(100):
            patience.observe_answer(session, 10.4, 5)
            patience.observe_step(num_requests, num_requests, 0, is_trial=False)
    for _ in range(100):
        patience.observe_answer(session, 10.1, 5)
        patience.observe_step(8, 0, 8, is_trial=False)

    patience.face(between)
    patience.face(1)
    assert patience.answer_s(1.0, 5) == pytest.approx(0.1, rel=0.2)
    assert patience.chance > 0.9


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_trial_soon_shows_how_long_answers_take_by_now(*, is_alone: bool) -> None:
    """One of a lone request at a time, after load under which its draft was slow."""
    patience, session = Patience(), make_session()
    patience.face(1)
    for _ in range(100):
        patience.observe_answer(session, 10.08, 5)
    for _ in range(3):
        patience.give_a_chance(1.0, is_alone=is_alone)
        patience.observe_answer(session, 10.01, 5)
    assert (patience.answer_s(1.0, 5) < 0.02) == is_alone
