"""Runs a plan: rounds of off and on in turn, then medians over the rounds."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from specray.cli.bench.client import Endpoint, Request
from specray.cli.bench.load import measure_cell, run_workers
from specray.cli.bench.plan import Cell, Plan, System, order
from specray.cli.bench.workloads import MIXED, load_prompts

WARM_UP_CONCURRENCY = 8
WARM_UP_TOKENS = 2

Speeds = dict[tuple[Cell, System], float]
"""Tokens per second of one round."""


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
    max_tokens: int  # per answer


async def measure(endpoint: Endpoint, plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Measures every cell of the plan, and closes the endpoint.

    Args:
        endpoint: the service.
        plan: cells, rounds and lengths.
        tell: hears one line per cell, system and round.

    Raises:
        StartupError: if the service does not answer.
    """
    try:
        await endpoint.start()
        await warm_up(endpoint, load_prompts(MIXED))
        rounds: list[Speeds] = [{} for _ in range(plan.num_rounds)]
        clock = asyncio.get_running_loop().time
        started = clock()
        for done, (index, cell, system) in enumerate(_measurements(plan), start=1):
            max_depth = 0 if system == "off" else None
            speed = await measure_cell(endpoint, cell, plan, index, max_depth)
            rounds[index][cell, system] = speed
            left_s = (clock() - started) * (plan.num_measurements - done) / done
            tell(_progress(plan, index, cell, system, speed, left_s))
        return [row for cell in plan.cells for row in summarise(plan, cell, rounds)]
    finally:
        await endpoint.close()


def summarise(plan: Plan, cell: Cell, rounds: Sequence[Speeds]) -> tuple[Row, Row]:
    """The rows of a cell: off, then on."""
    off = [speeds[cell, "off"] for speeds in rounds]
    on = [speeds[cell, "specray"] for speeds in rounds]
    ratio = median(fast / slow for fast, slow in zip(on, off, strict=True))
    return _make_row(plan, cell, "off", off, 1.0), _make_row(plan, cell, "specray", on, ratio)


def _make_row(plan: Plan, cell: Cell, system: System, speeds: Sequence[float], ratio: float) -> Row:
    return Row(
        system=system,
        workload=cell.workload,
        concurrency=cell.concurrency,
        temperature=cell.temperature,
        tokens_per_s=round(median(speeds), 2),
        ratio_to_off=round(ratio, 3),
        tokens_per_s_rounds=tuple(round(speed, 2) for speed in speeds),
        max_tokens=plan.max_tokens,
    )


def _measurements(plan: Plan) -> Iterator[tuple[int, Cell, System]]:
    """Off and on of a cell follow each other, so that a change of the machine meets both."""
    for index in range(plan.num_rounds):
        for cell in plan.cells:
            for system in order(index):
                yield index, cell, system


def _progress(
    plan: Plan, index: int, cell: Cell, system: System, tokens_per_s: float, left_s: float
) -> str:
    minutes, seconds = divmod(round(left_s), 60)
    return (
        f"round {index + 1}/{plan.num_rounds}  {cell.workload:<11}  {cell.concurrency} at once  "
        f"temperature {cell.temperature:g}  {system:<7}  {tokens_per_s:7.1f} tok/s  "
        f"{minutes}:{seconds:02} left"
    )


async def warm_up(endpoint: Endpoint, prompts: Sequence[str]) -> None:
    """Sends every prompt once: code paths are warm, and prefixes cached for all systems alike."""
    queue = (
        Request(prompt, 0.0, WARM_UP_TOKENS, seed, ignore_eos=False)
        for seed, prompt in enumerate(prompts)
    )
    await run_workers(endpoint, [queue] * WARM_UP_CONCURRENCY, lambda _: None)
