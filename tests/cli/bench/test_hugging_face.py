import sys
from dataclasses import replace

import pytest

from specray.cli.bench.client import Request
from specray.cli.bench.hugging_face import run_generation
from specray.cli.bench.plan import Cell
from specray.errors import StartupError

FAKE = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question["prompt"] == "die":
        sys.exit("out of memory")
    seconds = question["max_tokens"] / (question["depth"] or 1) + question["temperature"]
    print(json.dumps({"num_tokens": question["max_tokens"], "duration_s": seconds}), flush=True)
"""
COMMAND = [sys.executable, "-c", FAKE]
REQUEST = Request("Why?", temperature=0.0, max_tokens=12, seed=3, ignore_eos=False)


def test_speed_is_over_all_answers() -> None:
    warm = replace(REQUEST, temperature=2.0)
    with run_generation("plain", "target", None, COMMAND) as generation:
        assert generation.time_answers([REQUEST], 4) == 4.0
        assert generation.time_answers([REQUEST, warm], 4) == 24 / (3 + 5)
        assert generation.time_answers([REQUEST], None) == 1.0


def test_an_end_is_reported_with_what_was_said() -> None:
    die = replace(REQUEST, prompt="die")
    with (
        pytest.raises(StartupError, match="out of memory"),
        run_generation("plain", "target", None, COMMAND) as generation,
    ):
        generation.time_answers([die], None)


def test_a_failed_start_is_reported() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        pytest.raises(StartupError, match="no such model"),
        run_generation("plain", "target", None, command),
    ):
        pass


def test_it_answers_one_at_a_time_only() -> None:
    from specray.cli.bench.systems import GenerateSystem

    system = GenerateSystem("hf", "plain", deployment=None)  # type: ignore[arg-type]
    assert system.can(Cell("chat", 1, 0.0))
    assert not system.can(Cell("chat", 8, 0.0))
