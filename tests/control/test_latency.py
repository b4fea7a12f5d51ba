import random

import pytest

from specray.control.latency import AnswerTime


def test_nothing_is_known_before_the_first_answer() -> None:
    answers = AnswerTime()

    assert answers.mean_s(4) is None
    assert answers.mostly_s(4) is None
    assert answers.patience_s(4) is None


def test_the_first_answer_is_believed_with_some_patience() -> None:
    answers = AnswerTime()
    answers.observe(4, 0.010)

    assert answers.mean_s(4) == pytest.approx(0.010)
    assert answers.mostly_s(4) == pytest.approx(0.015)
    assert answers.patience_s(4) == pytest.approx(0.025)


def test_it_settles_on_the_mean_and_is_patient_with_the_usual_spread() -> None:
    answers = AnswerTime()
    rng = random.Random(0)
    for _ in range(300):
        answers.observe(4, rng.uniform(0.008, 0.012))

    assert answers.mean_s(4) == pytest.approx(0.010, rel=0.1)
    assert 0.0105 < (answers.mostly_s(4) or 0.0) < 0.0115
    assert 0.012 < (answers.patience_s(4) or 0.0) < 0.016


def test_steady_answers_leave_no_reason_for_patience() -> None:
    answers = AnswerTime()
    for _ in range(200):
        answers.observe(4, 0.010)

    assert answers.patience_s(4) == pytest.approx(0.010, rel=0.01)


def test_a_slow_start_is_soon_outweighed() -> None:
    answers = AnswerTime()
    answers.observe(4, 0.100)  # the draft warms up
    for _ in range(9):
        answers.observe(4, 0.005)

    assert answers.mean_s(4) is not None
    assert (answers.mean_s(4) or 1.0) < 0.016


def test_it_follows_a_change_for_the_worse() -> None:
    answers = AnswerTime()
    for _ in range(50):
        answers.observe(4, 0.005)
    for _ in range(80):
        answers.observe(4, 0.050)

    assert answers.mean_s(4) == pytest.approx(0.050, rel=0.1)


def test_a_few_answers_of_other_lengths_show_what_each_token_takes() -> None:
    answers = AnswerTime()
    for _ in range(4):
        for num_tokens in (1, 3, 5):
            answers.observe(num_tokens, 0.005 + 0.007 * num_tokens)

    assert answers.mean_s(2) == pytest.approx(0.019, rel=0.1)
    assert answers.mean_s(4) == pytest.approx(0.033, rel=0.1)


def test_before_that_half_of_the_time_is_thought_to_grow_with_the_tokens() -> None:
    answers = AnswerTime()
    for _ in range(20):
        answers.observe(4, 0.040)

    assert answers.mean_s(2) == pytest.approx(0.030, rel=0.01)


def test_what_is_hardly_asked_for_any_more_is_soon_known_anew() -> None:
    answers = AnswerTime()
    for _ in range(100):
        answers.observe(4, 0.080)
    for _ in range(4):
        answers.fade()
        answers.fade()  # nothing more is forgotten
        answers.observe(4, 0.008)

    assert answers.mean_s(4) == pytest.approx(0.008 + 0.072 / 16, rel=0.05)


def test_nothing_fades_where_nothing_is_known() -> None:
    answers = AnswerTime()
    answers.fade()
    answers.observe(4, 0.008)

    assert answers.mean_s(4) == pytest.approx(0.008)


def test_one_late_answer_after_a_fade_is_not_expected_to_be_the_rule() -> None:
    answers = AnswerTime()
    for _ in range(100):
        answers.observe(4, 0.080)
    answers.fade()
    answers.observe(4, 0.800)

    patience_s = (answers.patience_s(4) or 0.0) - (answers.mean_s(4) or 0.0)
    assert patience_s == pytest.approx(3 * 0.1 * 0.72, rel=0.05)
