import pytest

from specray.draft.engine import EngineStats
from specray.draft.report import DraftReporter


def test_a_report_is_about_the_last_seconds() -> None:
    times = iter([0.0, 10.0])
    reporter = DraftReporter("draft", lambda: next(times))
    reporter.report(EngineStats(num_proposals=5, num_proposed=10, busy_s=1.0))
    report = reporter.report(
        EngineStats(
            num_open_sessions=3,
            num_proposals=45,
            num_proposed=130,
            busy_s=7.0,
            ahead_s=2.0,
            queued_s=0.4,
            answer_fixed_s=0.01,
            answer_each_s=0.002,
        )
    )

    assert (report.deployment, report.num_sessions) == ("draft", 3)
    assert report.utilisation == pytest.approx(0.6)
    assert report.needed == pytest.approx(0.4)
    assert report.answers_per_s == pytest.approx(4.0)
    assert report.tokens_per_answer == pytest.approx(3.0)
    assert report.queue_s == pytest.approx(0.01)
    assert (report.answer_fixed_s, report.answer_each_s) == (0.01, 0.002)


def test_a_draft_that_has_done_nothing_reports_so() -> None:
    report = DraftReporter("draft", lambda: 0.0).report(EngineStats())

    assert (report.utilisation, report.answers_per_s, report.tokens_per_answer) == (0.0, 0.0, 0.0)
