import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from specray.cli.bench import systems
from specray.cli.bench.client import Endpoint
from specray.cli.bench.hugging_face import run_generation
from specray.cli.bench.plan import Cell, Plan
from specray.cli.bench.results import Setting
from specray.cli.bench.systems import GenerateSystem, VllmSystem, measure_cells
from specray.cli.bench.workloads import MIXED, load_prompts
from specray.errors import StartupError
from tests.cli.fake_openai import FakeOpenAI, run_virtual

CELLS = (Cell("chat", 1, 0.0), Cell("chat", 2, 1.0))
PLAN = Plan(CELLS, num_rounds=1, num_answers=1, ramp_s=2.0, window_s=6.0, max_tokens=30)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeOpenAI:
    fake = FakeOpenAI()
    monkeypatch.setattr(systems, "Endpoint", lambda url: Endpoint(url, fake))
    return fake


def test_each_cell_is_measured_after_every_prompt_was_sent(fake: FakeOpenAI) -> None:
    lines: list[str] = []

    speeds = run_virtual(measure_cells("http://fake", CELLS, PLAN, 0, lines.append))

    assert speeds == {CELLS[0]: pytest.approx(6.0), CELLS[1]: pytest.approx(12.0)}
    assert len(lines) == 2
    num_prompts = len(load_prompts(MIXED))
    warm_up = {body["messages"][0]["content"] for body in fake.bodies[:num_prompts]}
    assert warm_up == set(load_prompts(MIXED))
    assert {body["max_tokens"] for body in fake.bodies[num_prompts:]} == {30}


def test_rounds_go_on_with_other_prompts(fake: FakeOpenAI) -> None:
    chat = load_prompts("chat")
    plan = replace(PLAN, num_answers=2)
    for round_index in (0, 2):
        run_virtual(measure_cells("http://fake", CELLS[:1], plan, round_index, print, is_warm=True))
    asked = [body["messages"][0]["content"] for body in fake.bodies]
    assert asked == [*chat[:2], *chat[4:6]]


def test_a_warm_service_may_be_capped(fake: FakeOpenAI) -> None:
    work = measure_cells("http://fake", CELLS[:1], PLAN, 0, print, max_depth=0, is_warm=True)

    assert run_virtual(work) == {CELLS[0]: pytest.approx(2.0)}
    (body,) = fake.bodies
    assert body["vllm_xargs"] == {"num_speculative_tokens": 0}


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any] | None]:
    seen: list[Mapping[str, Any] | None] = []

    @contextmanager
    def run_vllm(
        _deployment: object, config: Mapping[str, Any] | None, _n: int | None
    ) -> Iterator[str]:
        seen.append(config)
        yield "http://fake"

    async def speeds(*_args: object) -> systems.Speeds:
        return {CELLS[0]: 9.0}

    monkeypatch.setattr(systems, "run_vllm", run_vllm)
    monkeypatch.setattr(systems, "measure_cells", speeds)
    return seen


def test_vllm_speculates_at_the_depth_it_is_given(
    configs: list[Mapping[str, Any] | None],
) -> None:
    deployment: Any = None
    plain, ngram = VllmSystem("a", deployment), VllmSystem("b", deployment, {"method": "ngram"})

    assert plain.measure(CELLS, Setting(), PLAN, 0, print) == {CELLS[0]: 9.0}
    ngram.measure(CELLS, Setting(3), PLAN, 0, print)

    assert configs == [None, {"method": "ngram", "num_speculative_tokens": 3}]


def test_what_vllm_needs_and_is_not_there_is_named(
    configs: list[Mapping[str, Any] | None],
) -> None:
    deployment: Any = None
    system = VllmSystem("a", deployment, {"method": "suffix"}, (Setting(2),), "no-such-package")

    with pytest.raises(StartupError, match="no-such-package is not installed"):
        system.measure(CELLS, Setting(2), PLAN, 0, print)
    assert configs == []


GENERATE = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"num_tokens": asked["max_tokens"], "duration_s": asked["max_tokens"] / asked["depth"]}
    print(json.dumps(answer), flush=True)
"""


def test_generate_is_asked_for_whole_answers_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Models:
        target, draft = "target", "draft"

    deployment: Any = Models()
    command = [sys.executable, "-c", GENERATE]
    run = partial(run_generation, command=command)
    monkeypatch.setattr(systems, "run_generation", run)
    system = GenerateSystem("hf", "assisted", deployment, (Setting(2),), needs_draft=True)
    lines: list[str] = []

    assert system.measure(CELLS[:1], Setting(3), PLAN, 0, lines.append) == {CELLS[0]: 3.0}
    assert len(lines) == 1
