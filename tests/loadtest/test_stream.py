import json
from typing import Any

import pytest

from loadtest.load.stream import BrokenAnswerError, Timing, read_answer
from loadtest.load.summary import Group


def line(**chunk: Any) -> bytes:
    return b"data: " + json.dumps({"choices": []} | chunk).encode() + b"\n"


def text(content: str) -> bytes:
    return line(choices=[{"delta": {"content": content}}])


def read(*lines: bytes) -> Timing:
    now = iter(range(100, 200))
    return read_answer(lines, 90.0, clock=lambda: float(next(now)))


def test_times_are_those_of_chunks_with_text_and_tokens_those_of_the_service() -> None:
    timing = read(
        text(""),
        b"\n",
        text("a"),
        text("bcd"),
        line(usage={"completion_tokens": 5}),
        b"data: [DONE]",
    )
    assert timing == Timing(ttft_s=11.0, e2e_s=12.0, num_tokens=5, gaps_s=[1.0])
    assert timing.tpot_s == pytest.approx(0.25)


def test_one_token_has_no_time_per_token() -> None:
    assert read(text("a"), line(usage={"completion_tokens": 1})).tpot_s is None


@pytest.mark.parametrize(
    "lines",
    [[], [text("a")], [line(usage={"completion_tokens": 1})], [line(error={"message": "no"})]],
)
def test_a_broken_answer_is_no_measurement(lines: list[bytes]) -> None:
    with pytest.raises(BrokenAnswerError):
        read(*lines)


def test_a_groups_report_counts_all_its_tokens_over_all_its_time() -> None:
    group = Group(2.0, "on")
    group.add(Timing(0.1, 1.1, 11, [0.1] * 10), sent_s=0.0, ended_s=1.5)
    group.add(Timing(0.3, 1.3, 21, [0.05] * 20), sent_s=3.0, ended_s=4.0)
    group.add(None, sent_s=3.5, ended_s=4.0)
    report = group.report()

    assert (report["num_requests"], report["num_failures"]) == (3, 1)
    assert report["tokens_per_s"] == 8.0
    assert report["ttft_ms"] == {"mean": 200.0, "p50": 200.0, "p90": 280.0, "p99": 298.0}
    assert report["tpot_ms"]["mean"] == 75.0
