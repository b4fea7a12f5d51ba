import asyncio
from typing import Any

import httpx
import pytest

from specray.cli.bench.client import Endpoint
from specray.cli.bench.plan import Cell, Plan, System, make_plan
from specray.cli.bench.runner import Row, measure, summarise
from specray.errors import StartupError
from tests.cli.fake_openai import FakeOpenAI, serve_fake

CELL = Cell("chat", concurrency=2, temperature=0.0, num_requests=4, max_tokens=7)


def run(fake: FakeOpenAI, *cells: Cell, num_rounds: int = 2) -> list[Row]:
    fake.bodies.clear()
    return asyncio.run(measure(Endpoint(fake.url), Plan(cells, num_rounds), lambda _: None))


def measured(fake: FakeOpenAI) -> list[dict[str, Any]]:
    """What was asked after the warm-up."""
    return [body for body in fake.bodies if body["max_tokens"] == CELL.max_tokens]


def test_a_row_per_system_with_positive_speed() -> None:
    with serve_fake() as fake:
        rows = run(fake, CELL)

    assert [row.system for row in rows] == ["off", "specray"]
    assert all(row.tokens_per_s > 0 and len(row.tokens_per_s_rounds) == 2 for row in rows)


def test_off_caps_the_depth_and_all_else_is_equal() -> None:
    with serve_fake() as fake:
        run(fake, CELL, num_rounds=1)
    bodies = measured(fake)

    off = [body for body in bodies if body.get("vllm_xargs") == {"num_speculative_tokens": 0}]
    on = [body for body in bodies if "vllm_xargs" not in body]
    assert len(off) == len(on) == CELL.num_requests
    for body in off:
        del body["vllm_xargs"]
    assert sorted(off, key=str) == sorted(on, key=str)
    assert all(body["ignore_eos"] and body["model"] == "fake-model" for body in bodies)


def test_systems_take_turns_in_going_first() -> None:
    one = Cell("chat", 1, 0.0, num_requests=1, max_tokens=CELL.max_tokens)
    with serve_fake() as fake:
        run(fake, one)

    assert ["vllm_xargs" in body for body in measured(fake)] == [True, False, False, True]


def test_rounds_use_other_prompts() -> None:
    one = Cell("chat", 1, 0.0, num_requests=1, max_tokens=CELL.max_tokens)
    with serve_fake() as fake:
        run(fake, one)

    first, _, second, _ = (body["messages"][0]["content"] for body in measured(fake))
    assert first != second


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_requests_at_once_as_asked_for(concurrency: int) -> None:
    in_flight: list[int] = [0]

    async def handle(request: httpx.Request) -> httpx.Response:
        in_flight.append(in_flight[-1] + 1)
        for _ in range(20):  # lets every request start that may
            await asyncio.sleep(0)
        in_flight.append(in_flight[-1] - 1)
        return httpx.Response(200, json={"usage": {"completion_tokens": 5}})

    endpoint = Endpoint("http://fake", httpx.MockTransport(handle))
    num_tokens = asyncio.run(
        endpoint.complete_all(
            ["a"] * 8, "off", concurrency=concurrency, temperature=0.0, max_tokens=5
        )
    )

    assert num_tokens == 8 * 5
    assert max(in_flight) == concurrency


def test_a_refusal_is_reported_with_its_status() -> None:
    with serve_fake() as fake:
        fake.status = 503
        with pytest.raises(StartupError, match="answered 503"):
            run(fake, CELL)


def test_an_unreachable_service_is_reported() -> None:
    with serve_fake() as fake:
        url = fake.url
    with pytest.raises(StartupError, match="can't be reached"):
        asyncio.run(measure(Endpoint(url), Plan((CELL,), 1), lambda _: None))


def test_medians_are_over_rounds_and_ratios_within_them() -> None:
    speeds: list[dict[tuple[Cell, System], float]] = [
        {(CELL, "off"): 10.0, (CELL, "specray"): 20.0},
        {(CELL, "off"): 100.0, (CELL, "specray"): 150.0},
        {(CELL, "off"): 11.0, (CELL, "specray"): 33.0},
    ]

    off, on = summarise(CELL, speeds)

    assert (off.tokens_per_s, off.ratio_to_off) == (11.0, 1.0)
    assert (on.tokens_per_s, on.ratio_to_off) == (33.0, 2.0)
    assert on.tokens_per_s_rounds == (20.0, 150.0, 33.0)


def test_the_quick_plan_fits_into_five_minutes() -> None:
    plan = make_plan(is_quick=True)
    floor = {1: 18.0, 8: 100.0}  # tokens per second without speculation, on two cores

    seconds = sum(
        cell.num_requests * cell.max_tokens / floor[cell.concurrency] for cell in plan.cells
    )

    assert plan.num_rounds >= 2
    assert 90 + 2 * plan.num_rounds * seconds < 300
