from dataclasses import replace

import pytest

from specray.cli.bench.client import Endpoint
from specray.cli.bench.plan import Cell, Plan
from specray.cli.bench.runner import Row, Speeds, measure, summarise
from specray.cli.bench.workloads import WORKLOADS, load_prompts
from tests.cli.fake_openai import FakeOpenAI, run_virtual

CELL = Cell("chat", concurrency=2, temperature=0.0)
PLAN = Plan((CELL,), num_rounds=2, num_answers=1, ramp_s=2.0, window_s=6.0)
NUM_WARM_UP = sum(len(load_prompts(workload)) for workload in WORKLOADS)


def run(fake: FakeOpenAI, plan: Plan = PLAN) -> tuple[list[Row], list[str]]:
    lines: list[str] = []
    return run_virtual(measure(Endpoint("http://fake", fake), plan, lines.append)), lines


def test_speed_is_tokens_in_the_window_per_second() -> None:
    off, on = run(FakeOpenAI(chunk_every_s=0.5, tokens_off=1, tokens_on=3))[0]

    assert (off.system, on.system) == ("off", "specray")
    assert (off.tokens_per_s, off.ratio_to_off) == (pytest.approx(2 * 1 / 0.5), 1.0)
    assert (on.tokens_per_s, on.ratio_to_off) == (pytest.approx(2 * 3 / 0.5), 3.0)
    assert len(on.tokens_per_s_rounds) == 2
    assert on.max_tokens == 160


def test_off_caps_the_depth_and_all_else_is_equal() -> None:
    fake = FakeOpenAI(tokens_off=3)
    run(fake, replace(PLAN, num_rounds=1, max_tokens=6))
    bodies = fake.bodies[NUM_WARM_UP:]

    off = [body for body in bodies if body.get("vllm_xargs") == {"num_speculative_tokens": 0}]
    on = [body for body in bodies if "vllm_xargs" not in body]
    for body in off:
        del body["vllm_xargs"]

    assert len(bodies) == len(off) + len(on) == 2 * 2 * 8
    assert off == on


def test_the_warm_up_sends_every_prompt_once() -> None:
    fake = FakeOpenAI()
    run(fake)

    prompts = {body["messages"][0]["content"] for body in fake.bodies[:NUM_WARM_UP]}
    assert len(prompts) == NUM_WARM_UP
    assert {body["max_tokens"] for body in fake.bodies[:NUM_WARM_UP]} == {2}
    assert {body["max_tokens"] for body in fake.bodies[NUM_WARM_UP:]} == {160}


def test_systems_take_turns_and_rounds_go_on_with_other_prompts() -> None:
    fake = FakeOpenAI()
    run(fake, replace(PLAN, cells=(Cell("chat", 1, 0.0),), num_answers=2))
    bodies = fake.bodies[NUM_WARM_UP:]

    asked = [body["messages"][0]["content"] for body in bodies]
    assert ["vllm_xargs" in body for body in bodies[::2]] == [True, False, False, True]
    chat = load_prompts("chat")
    assert asked == [*chat[:2], *chat[:2], *chat[2:4], *chat[2:4]]


def test_every_measurement_is_told_with_the_time_left() -> None:
    lines = run(FakeOpenAI())[1]

    assert len(lines) == 4
    words = " ".join(lines[1].split())
    assert words == "round 1/2 chat 2 at once temperature 0 specray 12.0 tok/s 0:16 left"
    assert lines[-1].endswith("0:00 left")


def test_medians_are_over_rounds_and_ratios_within_them() -> None:
    speeds: list[Speeds] = [
        {(CELL, "off"): 10.0, (CELL, "specray"): 20.0},
        {(CELL, "off"): 100.0, (CELL, "specray"): 150.0},
        {(CELL, "off"): 11.0, (CELL, "specray"): 33.0},
    ]

    off, on = summarise(PLAN, CELL, speeds)

    assert (off.tokens_per_s, off.ratio_to_off) == (11.0, 1.0)
    assert (on.tokens_per_s, on.ratio_to_off) == (33.0, 2.0)
    assert on.tokens_per_s_rounds == (20.0, 150.0, 33.0)
