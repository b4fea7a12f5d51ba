from pathlib import Path

import numpy as np
import pytest

from specray.errors import InvalidConfigError
from specray.simulate.arrivals import (
    Arrival,
    Bursty,
    Diurnal,
    Lengths,
    Pattern,
    Poisson,
    draw_arrivals,
    read_arrivals,
)

LENGTHS = Lengths(100, 40, 0.5)
PATTERNS = [Poisson(5.0), Bursty(5.0), Diurnal(5.0, period_s=100.0)]


def dispersion(pattern: Pattern) -> float:
    """Variance over mean of the arrivals in a second: 1 for a Poisson process."""
    times = [arrival.at_s for arrival in draw_arrivals(pattern, LENGTHS, 4000.0, 1)]
    counts = np.bincount(np.array(times, int), minlength=4000)
    return float(counts.var() / counts.mean())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_mean_rate_is_what_was_asked_for(pattern: Pattern) -> None:
    found = draw_arrivals(pattern, LENGTHS, 4000.0, 1)

    assert len(found) / 4000 == pytest.approx(5.0, rel=0.06)
    assert [arrival.at_s for arrival in found] == sorted(arrival.at_s for arrival in found)
    assert all(0 <= arrival.at_s < 4000 for arrival in found)


def test_only_bursts_and_days_are_more_uneven_than_chance() -> None:
    assert dispersion(Poisson(5.0)) == pytest.approx(1.0, rel=0.1)
    assert dispersion(Bursty(5.0)) > 2
    assert dispersion(Diurnal(5.0, period_s=100.0)) > 1.5


def test_lengths_have_their_mean_and_spread() -> None:
    found = draw_arrivals(Poisson(5.0), LENGTHS, 2000.0, 2)
    prompts = np.array([arrival.num_prompt_tokens for arrival in found])

    assert prompts.mean() == pytest.approx(100, rel=0.03)
    assert prompts.std() == pytest.approx(50, rel=0.1)
    assert {a.num_answer_tokens for a in draw_arrivals(Poisson(5.0), Lengths(9, 3), 9.0, 0)} == {3}


def test_a_seed_says_it_all() -> None:
    one, same, other = (draw_arrivals(Poisson(5.0), LENGTHS, 50.0, seed) for seed in (1, 1, 2))

    assert one == same
    assert one != other


def test_recorded_arrivals_are_replayed_in_order(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.jsonl"
    path.write_text(
        '{"at_s": 2.5, "prompt_tokens": 7, "answer_tokens": 3}\n\n'
        '{"at_s": 0, "prompt_tokens": 5, "answer_tokens": 1}\n'
    )

    assert read_arrivals(path) == (Arrival(0.0, 5, 1), Arrival(2.5, 7, 3))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":1: "),
        ("[]", "no object"),
        ('{"at_s": -1, "prompt_tokens": 5, "answer_tokens": 1}', "at_s is -1"),
        ('{"at_s": NaN, "prompt_tokens": 5, "answer_tokens": 1}', "at_s is nan"),
        ('{"at_s": 1, "prompt_tokens": 0, "answer_tokens": 1}', "prompt_tokens is 0"),
        ('{"at_s": 1, "prompt_tokens": 5, "answer_tokens": 1.5}', "answer_tokens is 1.5"),
        ('{"at_s": 1, "prompt_tokens": true, "answer_tokens": 1}', "prompt_tokens is True"),
        ("", "no arrivals"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "arrivals.jsonl"
    path.write_text(line)

    with pytest.raises(InvalidConfigError, match=message):
        read_arrivals(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="nowhere"):
        read_arrivals(tmp_path / "nowhere")
