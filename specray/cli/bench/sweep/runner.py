"""Runs a sweep: each system under each load, round by round."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Protocol

import httpx

from specray.cli.bench.client import Endpoint, Request
from specray.cli.bench.runner import warm_up
from specray.cli.bench.sweep.counters import CounterLog
from specray.cli.bench.sweep.open_loop import Answer, ask_all
from specray.cli.bench.sweep.plan import Load, SweepPlan
from specray.cli.bench.workloads import WORKLOADS, load_prompts


class Switchable(Protocol):
    """A service that can become another system."""

    metrics_url: str

    def become(self, system: str) -> None:
        """Change the live policy."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A second or so of a cell, by the service's counters."""

    at_s: float  # since the cell's load began
    depth: float  # draft tokens per request and step
    acceptance_rate: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One system under one load in one round."""

    round_index: int
    load: str
    system: str
    answers: tuple[Answer, ...]
    depth: float | None  # mean over the cell; None if the service counted nothing
    acceptance_rate: float | None
    moments: tuple[Moment, ...]

    @property
    def tokens_per_s(self) -> float:
        """All tokens over the time from the first request to the last token."""
        first = min(answer.asked_s for answer in self.answers)
        last = max(answer.ended_s for answer in self.answers)
        return sum(answer.num_tokens for answer in self.answers) / (last - first)

    @property
    def progress(self) -> str:
        """One line to follow a sweep by."""
        depth = "" if self.depth is None else f"  depth {self.depth:.2f}"
        return (
            f"round {self.round_index + 1}  {self.load:>11} QPS  {self.system:<8}  "
            f"{self.tokens_per_s:6.1f} tok/s{depth}"
        )


async def sweep(
    endpoint: Endpoint, metrics: httpx.AsyncClient, service: Switchable, plan: SweepPlan
) -> AsyncIterator[Cell]:
    """Measures all cells, one after the other.

    Raises:
        StartupError: if the service does not answer, or does not take a policy.
    """
    log = CounterLog(service.metrics_url, metrics, asyncio.get_running_loop().time)
    await endpoint.start()
    prompts = {workload: load_prompts(workload) for workload in WORKLOADS}
    await warm_up(endpoint, [prompt for some in prompts.values() for prompt in some])
    follower = asyncio.create_task(log.follow())
    try:
        for index, load, system in plan.cells():
            service.become(system)  # blocks, while there is nothing else to do
            await asyncio.sleep(plan.settle_s)
            requests = _requests(plan, index, load, system, prompts)
            yield await _measure(endpoint, log, requests, index, load, system, plan)
    finally:
        follower.cancel()
        with suppress(asyncio.CancelledError):
            await follower


def finished(plan: SweepPlan, cells: Sequence[Cell]) -> tuple[SweepPlan, list[Cell]]:
    """What of a sweep can be compared: loads that every system has met in the same round."""
    met: dict[tuple[int, str], set[str]] = defaultdict(set)
    for cell in cells:
        met[cell.round_index, cell.load].add(cell.system)
    whole = {key for key, systems in met.items() if len(systems) == len(plan.systems)}
    kept = [cell for cell in cells if (cell.round_index, cell.load) in whole]
    loads = tuple(load for load in plan.loads if any(cell.load == load.name for cell in kept))
    num_rounds = 1 + max((cell.round_index for cell in kept), default=0)
    return replace(plan, loads=loads, num_rounds=num_rounds), kept


async def _measure(
    endpoint: Endpoint,
    log: CounterLog,
    requests: Sequence[Request],
    round_index: int,
    load: Load,
    system: str,
    plan: SweepPlan,
) -> Cell:
    clock = asyncio.get_running_loop().time
    before = await log.read()
    began = clock()
    answers = await ask_all(endpoint, requests, load.arrivals_s(round_index))
    await asyncio.sleep(plan.lag_s)
    total = (await log.read()).since(before)
    moments = tuple(
        Moment(round(change.at_s - began, 2), change.depth or 0.0, change.acceptance_rate)
        for change in log.between(began, clock())
    )
    return Cell(
        round_index,
        load.name,
        system,
        tuple(answers),
        total.depth,
        total.acceptance_rate,
        moments,
    )


def _requests(
    plan: SweepPlan,
    round_index: int,
    load: Load,
    system: str,
    prompts: Mapping[str, Sequence[str]],
) -> list[Request]:
    """The kinds of work in turn: the same requests for every system."""
    mixed = [prompt for group in zip(*prompts.values(), strict=False) for prompt in group]
    cap = 0 if system == "off" else None
    lengths = load.lengths(round_index, plan.mean_tokens)
    return [
        Request(prompt, 0.0, length, seed, cap, ignore_eos=True)
        for seed, (prompt, length) in enumerate(zip(cycle(mixed), lengths, strict=False))
    ]
