"""Runs a plan: rounds of off and on in turn, then medians over the rounds."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from specray.cli.bench.client import Endpoint
from specray.cli.bench.plan import Cell, Plan, System, order
from specray.cli.bench.workloads import WORKLOADS, load_prompts

WARM_UP_CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one cell for one system."""

    system: System
    workload: str
    concurrency: int
    temperature: float
    tokens_per_s: float  # median over the rounds
    ratio_to_off: float  # median over the rounds of this round's ratio
    tokens_per_s_rounds: tuple[float, ...]
    max_tokens: int
    num_requests: int  # per round


async def measure(endpoint: Endpoint, plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Measures every cell of the plan, and closes the endpoint.

    Args:
        endpoint: the service.
        plan: cells and rounds.
        tell: hears one line per round.

    Raises:
        StartupError: if the service does not answer.
    """
    try:
        await endpoint.start()
        prompts = {workload: load_prompts(workload) for workload in WORKLOADS}
        await _warm_up(endpoint, prompts)
        rounds: list[dict[tuple[Cell, System], float]] = []
        for index in range(plan.num_rounds):
            started = time.perf_counter()
            rounds.append(await _run_round(endpoint, plan, prompts, index))
            tell(f"round {index + 1}/{plan.num_rounds}: {time.perf_counter() - started:.0f} s")
        return [row for cell in plan.cells for row in summarise(cell, rounds)]
    finally:
        await endpoint.close()


def summarise(cell: Cell, rounds: Sequence[dict[tuple[Cell, System], float]]) -> tuple[Row, Row]:
    """The rows of a cell: off, then on. `rounds` hold tokens per second."""
    off = [speeds[cell, "off"] for speeds in rounds]
    on = [speeds[cell, "specray"] for speeds in rounds]
    ratio = median(fast / slow for fast, slow in zip(on, off, strict=True))
    return _make_row(cell, "off", off, 1.0), _make_row(cell, "specray", on, ratio)


def _make_row(cell: Cell, system: System, speeds: Sequence[float], ratio: float) -> Row:
    return Row(
        system=system,
        workload=cell.workload,
        concurrency=cell.concurrency,
        temperature=cell.temperature,
        tokens_per_s=round(median(speeds), 2),
        ratio_to_off=round(ratio, 3),
        tokens_per_s_rounds=tuple(round(speed, 2) for speed in speeds),
        max_tokens=cell.max_tokens,
        num_requests=cell.num_requests,
    )


async def _run_round(
    endpoint: Endpoint, plan: Plan, prompts: dict[str, list[str]], index: int
) -> dict[tuple[Cell, System], float]:
    speeds = {}
    for cell in plan.cells:
        chosen = _pick(prompts[cell.workload], index, cell.num_requests)
        for system in order(index):
            speeds[cell, system] = await _time_cell(endpoint, cell, system, chosen)
    return speeds


async def _time_cell(
    endpoint: Endpoint, cell: Cell, system: System, prompts: Sequence[str]
) -> float:
    started = time.perf_counter()
    num_tokens = await endpoint.complete_all(
        prompts,
        system,
        concurrency=cell.concurrency,
        temperature=cell.temperature,
        max_tokens=cell.max_tokens,
    )
    return num_tokens / (time.perf_counter() - started)


def _pick(prompts: Sequence[str], round_index: int, num_requests: int) -> list[str]:
    """Other prompts in each round, the same for both systems."""
    first = round_index * num_requests
    return [prompts[(first + i) % len(prompts)] for i in range(num_requests)]


async def _warm_up(endpoint: Endpoint, prompts: dict[str, list[str]]) -> None:
    """Sends every prompt once: code paths are warm, and prefixes cached for both systems alike."""
    every = [prompt for workload in prompts.values() for prompt in workload]
    await endpoint.complete_all(
        every, "specray", concurrency=WARM_UP_CONCURRENCY, temperature=0.0, max_tokens=2
    )
