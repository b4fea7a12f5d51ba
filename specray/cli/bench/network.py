"""`specray bench --network`: what round trips and slow drafts leave of speculation.

A delay line in front of the draft adds the round trip, the draft's passes are made longer, and
both change while the service runs: see `specray.serve.simulation`. Each round begins with another
round trip, so that none is always the first of a service. vLLM's methods draft inside the target,
so that no network touches them: they are measured once a round, at the fixed depth and on as many
cores as a search before found best.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from specray.cli.bench.client import Endpoint
from specray.cli.bench.deployment import Deployment, Service
from specray.cli.bench.load import make_queues, run_workers
from specray.cli.bench.peers import (
    NGRAM,
    PeersPlan,
    make_search,
    make_settings,
    round_pieces,
    search_pieces,
)
from specray.cli.bench.pieces import Piece
from specray.cli.bench.plan import Cell, Plan
from specray.cli.bench.results import Condition, Measurement, Results, Setting, measured
from specray.cli.bench.service import Running
from specray.cli.bench.systems import Speeds, VllmSystem, measure_cells
from specray.cli.bench.workloads import MIXED, load_prompts
from specray.config import SimulationConfig
from specray.errors import StartupError

KIND = "network"
OFF = "off"
_MAX_WAIT_MS = 200.0  # far above any wait that pays: the target decides
_START_S = 100.0  # of our service, warm and stopped again
_RELOAD_S = 8.0
_RELOAD_TIMEOUT_S = 60.0
_POLL_S = 0.2
_SETTLE_ANSWERS, _SETTLE_TOKENS = 3, 48  # that teach the target what waiting now costs


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """What is simulated, and measured under it."""

    rounds: Plan
    rtts_ms: tuple[float, ...]
    draft_shares: tuple[float, ...]  # of a verification step that a proposal takes at least
    colocated_depths: tuple[int, ...]  # of vLLM's methods; the best is measured

    @property
    def colocated(self) -> PeersPlan:
        """How vLLM's methods are measured."""
        return PeersPlan(make_search(self.rounds.cells), self.rounds, self.colocated_depths)

    def rtts_ms_of(self, round_number: int) -> tuple[float, ...]:
        """All of them, in the order in which a round goes through them."""
        first = (round_number - 1) % len(self.rtts_ms)
        return self.rtts_ms[first:] + self.rtts_ms[:first]


def make_plan(
    *, is_quick: bool, temperatures: Sequence[float] = (), num_rounds: int | None = None
) -> NetworkPlan:
    """Quick: one greedy round with a slow draft. Full: three rounds, at temperature 1 too.

    Args:
        is_quick: which of them.
        temperatures: to measure at, instead.
        num_rounds: likewise.
    """
    cells = tuple(
        Cell(MIXED, concurrency, temperature)
        for temperature in temperatures or ((0.0,) if is_quick else (0.0, 1.0))
        for concurrency in ((1, 8) if is_quick else (1, 4, 8))
    )
    if is_quick:
        rounds = Plan(
            cells, num_rounds or 1, num_answers=3, ramp_s=1.0, window_s=5.0, max_tokens=96
        )
        return NetworkPlan(rounds, (0.0, 5.0, 20.0), draft_shares=(0.6,), colocated_depths=(2,))
    rounds = Plan(cells, num_rounds or 3, num_answers=3, ramp_s=2.0, window_s=8.0, max_tokens=64)
    return NetworkPlan(
        rounds, (0.0, 1.0, 5.0, 20.0), draft_shares=(0.0, 0.6), colocated_depths=(1, 2, 4)
    )


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """Our service with a model for a draft."""

    name: str
    deployment: Deployment
    model: Mapping[str, Any]  # settings of the draft's model over the deployment's
    has_stop_gap: bool

    @property
    def args(self) -> dict[str, Any]:
        """Settings over the deployment's."""
        draft = {"method": "model", "model": dict(self.model), "simulation": {}}
        speculation = {"max_wait_ms": _MAX_WAIT_MS, "stop_gap": self.has_stop_gap}
        return {"draft": draft, "speculation": speculation}


NetworkSystem = Disaggregated | VllmSystem


def make_systems(deployment: Deployment, plan: NetworkPlan) -> list[NetworkSystem]:
    """Ours, and vLLM's own with the same draft and without one.

    Plain disaggregation is to propose, verify, propose: nothing is drafted ahead, and a target has
    nothing of its own for what does not come. `copies` adds the latter, `ahead-alone` the former,
    `ahead` both.

    Raises:
        InvalidConfigError: the deployment has no draft model.
    """
    draft_model = {"method": "draft_model", "model": deployment.draft}
    settings = make_settings(deployment, plan.colocated_depths)
    return [
        Disaggregated("plain", deployment, {"fan_out": 0}, has_stop_gap=False),
        Disaggregated("copies", deployment, {"fan_out": 0}, has_stop_gap=True),
        Disaggregated("ahead-alone", deployment, {}, has_stop_gap=False),
        Disaggregated("ahead", deployment, {}, has_stop_gap=True),
        VllmSystem("vllm-draft", deployment, draft_model, settings),
        VllmSystem("vllm-ngram", deployment, NGRAM, settings),
    ]


def make_pieces(
    systems: Sequence[NetworkSystem], plan: NetworkPlan, results: Results
) -> Iterator[Piece]:
    """What is to be measured, in order; the rounds ask for the search's results when they come."""
    yield from search_pieces([s for s in systems if isinstance(s, VllmSystem)], plan.colocated)
    for number in range(1, plan.rounds.num_rounds + 1):
        for system in systems if number % 2 else list(reversed(systems)):
            if isinstance(system, Disaggregated):
                for share in plan.draft_shares:
                    yield NetworkPiece(system, number, share, plan)
            else:
                yield from round_pieces(system, number, plan.colocated, results)


@dataclass(frozen=True, slots=True)
class NetworkPiece:
    """One of our systems in one round, with one slowness of the draft and all round trips."""

    of: Disaggregated
    round_number: int
    draft_share: float
    plan: NetworkPlan

    @property
    def system(self) -> str:
        """Its name."""
        return self.of.name

    @property
    def title(self) -> str:
        """Who, when and how slow."""
        share = f", a proposal takes {self.draft_share:.0%} of a step" if self.draft_share else ""
        return f"{self.system}: round {self.round_number}{share}"

    @property
    def expected_s(self) -> float:
        """Start, all cells with speculation off and under each round trip, and end."""
        cells_s = sum(map(self.plan.rounds.expected_cell_s, self.plan.rounds.cells))
        num_passes = 1 + len(self.plan.rtts_ms)
        return _START_S + num_passes * cells_s + len(self.plan.rtts_ms) * _RELOAD_S

    def is_done(self, results: Results) -> bool:
        """Whether every cell has its speed under each round trip in this round."""
        conditions = [
            Condition(cell, Setting(), rtt_ms, self.draft_share)
            for cell in self.plan.rounds.cells
            for rtt_ms in self.plan.rtts_ms
        ]
        return results.has(self.system, self.round_number, conditions)

    def measure(self, tell: Callable[[str], None]) -> list[Measurement]:
        """Starts the service and goes through the round trips.

        Raises:
            StartupError: the service does not come up, or stops answering.
        """
        service = Service(self.of.deployment, self.of.args)
        with service.run() as running:
            off = self._speeds(running, tell, max_depth=0)
            found = self._measurements(off, f"{self.system}:{OFF}", 0.0)
            pass_ms = self._pass_ms(off)
            for rtt_ms in self.plan.rtts_ms_of(self.round_number):
                tell(f" a round trip of {rtt_ms:g} ms, passes of {pass_ms:.1f} ms")
                reload(running, service, SimulationConfig(rtt_ms=rtt_ms, pass_ms=pass_ms))
                speeds = self._speeds(running, tell, max_depth=None)
                found += self._measurements(speeds, self.system, rtt_ms)
        return found

    def _pass_ms(self, off: Speeds) -> float:
        """How long each pass of a proposal of full depth has to take.

        A step is that of one greedy request: then it is as long as a token takes.
        """
        alone = [speed for cell, speed in off.items() if cell.concurrency == 1]
        return round(1e3 * self.draft_share / max(alone) / self.of.deployment.max_depth, 3)

    def _speeds(
        self, running: Running, tell: Callable[[str], None], max_depth: int | None
    ) -> Speeds:
        cells, plan = self.plan.rounds.cells, self.plan.rounds
        index, is_warm = self.round_number - 1, max_depth is None
        if is_warm:
            asyncio.run(_settle(running.url))
        work = measure_cells(
            running.url, cells, plan, index, tell, max_depth=max_depth, is_warm=is_warm
        )
        return asyncio.run(work)

    def _measurements(self, speeds: Speeds, name: str, rtt_ms: float) -> list[Measurement]:
        return [
            measured(
                name, self.round_number, Condition(cell, Setting(), rtt_ms, self.draft_share), speed
            )
            for cell, speed in speeds.items()
        ]


def reload(running: Running, service: Service, simulation: SimulationConfig) -> None:
    """Changes what is simulated, and waits until the draft says that it is in force.

    Raises:
        StartupError: it is not, after a minute, or the service's logs can't be found.
    """
    logs = running.said("logs: ")
    if not logs:
        raise StartupError(f"the service does not say where its logs are; see {running.log}")
    text = simulation.announcement
    before = _count(Path(logs), text)
    service.write({"simulation": simulation.model_dump()})
    running.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + _RELOAD_TIMEOUT_S
    while _count(Path(logs), text) == before:
        if time.monotonic() > deadline:
            raise StartupError(f"no draft has said {text!r} after {_RELOAD_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)


def _count(logs: Path, text: str) -> int:
    files = logs.glob("*draft*.log")
    return sum(file.read_text("utf-8", errors="replace").count(text) for file in files)


async def _settle(url: str) -> None:
    endpoint = Endpoint(url)
    try:
        await endpoint.start()
        (queue,) = make_queues(
            Cell(MIXED, 1, 0.0), load_prompts(MIXED), 0, _SETTLE_TOKENS, ignore_eos=False
        )
        await run_workers(endpoint, [islice(queue, _SETTLE_ANSWERS)], lambda _: None)
    finally:
        await endpoint.close()
