"""The systems that are compared: ours, vLLM's own methods, and Hugging Face's generate."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any, Protocol

from specray.cli.bench.client import Endpoint
from specray.cli.bench.deployment import Deployment, Service, run_vllm
from specray.cli.bench.hugging_face import run_generation
from specray.cli.bench.load import make_queues, measure_cell
from specray.cli.bench.plan import Cell, Plan
from specray.cli.bench.results import Setting
from specray.cli.bench.runner import warm_up
from specray.cli.bench.workloads import MIXED, load_prompts
from specray.errors import StartupError

Speeds = dict[Cell, float]
Tell = Callable[[str], None]

_WARM_UP_TOKENS = 8


class System(Protocol):
    """Something that answers prompts."""

    @property
    def name(self) -> str:
        """As the user names it."""

    @property
    def layer(self) -> str:
        """What lies between the prompts and the engine."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What to choose from, at least one."""

    @property
    def start_s(self) -> float:
        """How long it takes to start, warm up and end, on the slowest machine we know."""

    def can(self, cell: Cell, /) -> bool:
        """Whether it answers so many at once."""

    def measure(
        self, cells: Sequence[Cell], setting: Setting, plan: Plan, round_index: int, tell: Tell
    ) -> Speeds:
        """Starts it, measures tokens per second, and ends it; raises SpecrayError."""


@dataclass(frozen=True, slots=True)
class VllmSystem:
    """vLLM's OpenAI server, drafting inside the target or not at all."""

    name: str
    deployment: Deployment
    speculative_config: Mapping[str, Any] | None = None  # but for the depth
    settings: tuple[Setting, ...] = (Setting(),)
    package: str | None = None  # that vLLM needs for it
    layer: str = "HTTP, vLLM's own server"
    start_s: float = 40.0

    def can(self, _cell: Cell) -> bool:
        """Any number."""
        return True

    def measure(
        self, cells: Sequence[Cell], setting: Setting, plan: Plan, round_index: int, tell: Tell
    ) -> Speeds:
        """Over HTTP."""
        if self.package is not None and find_spec(self.package.replace("-", "_")) is None:
            raise StartupError(f"the package {self.package} is not installed")
        config = self.speculative_config
        if config is not None:
            config = {**config, "num_speculative_tokens": setting.depth}
        with run_vllm(self.deployment, config, setting.num_threads) as url:
            return asyncio.run(measure_cells(url, cells, plan, round_index, tell))


@dataclass(frozen=True, slots=True)
class SpecraySystem:
    """Our service; it chooses depths itself, request by request and step by step."""

    name: str
    deployment: Deployment
    args: Mapping[str, Any]  # settings over the deployment's
    settings: tuple[Setting, ...] = (Setting(),)
    layer: str = "HTTP, Ray Serve"
    options: tuple[str, ...] = ()  # of `specray serve`
    start_s: float = 100.0

    def can(self, _cell: Cell) -> bool:
        """Any number."""
        return True

    def measure(
        self, cells: Sequence[Cell], setting: Setting, plan: Plan, round_index: int, tell: Tell
    ) -> Speeds:
        """Over HTTP."""
        del setting  # it chooses for itself
        with Service(self.deployment, self.args, *self.options).run() as running:
            return asyncio.run(measure_cells(running.url, cells, plan, round_index, tell))


@dataclass(frozen=True, slots=True)
class GenerateSystem:
    """transformers' `generate`, which speculates for one request at a time only."""

    name: str
    method: str
    deployment: Deployment
    settings: tuple[Setting, ...] = (Setting(),)
    needs_draft: bool = False
    layer: str = "in process"
    start_s: float = 30.0

    def can(self, cell: Cell) -> bool:
        """One."""
        return cell.concurrency == 1

    def measure(
        self, cells: Sequence[Cell], setting: Setting, plan: Plan, round_index: int, tell: Tell
    ) -> Speeds:
        """Through a pipe."""
        target = self.deployment.target
        draft = self.deployment.draft if self.needs_draft else None
        speeds: Speeds = {}
        with run_generation(self.method, target, draft) as generation:
            (queue,) = make_queues(
                cells[0], load_prompts(MIXED), 0, _WARM_UP_TOKENS, ignore_eos=False
            )
            generation.time_answers(islice(queue, 2), setting.depth)
            for cell in cells:
                prompts = load_prompts(cell.workload)
                first = plan.first_prompt(cell, round_index)
                (queue,) = make_queues(cell, prompts, first, plan.max_tokens, ignore_eos=False)
                speeds[cell] = generation.time_answers(
                    islice(queue, plan.num_answers), setting.depth
                )
                tell(describe(cell, speeds[cell]))
        return speeds


async def measure_cells(
    url: str,
    cells: Iterable[Cell],
    plan: Plan,
    round_index: int,
    tell: Tell,
    *,
    max_depth: int | None = None,
    is_warm: bool = False,
) -> Speeds:
    """Tokens per second of each cell, over HTTP.

    Args:
        url: of the service.
        cells: in order.
        plan: how long to look.
        round_index: which prompts come first.
        tell: hears every speed.
        max_depth: caps the depth of all requests; None leaves it to the service.
        is_warm: whether all prompts have been sent before.

    Raises:
        StartupError: the service does not answer.
    """
    endpoint = Endpoint(url)
    speeds: Speeds = {}
    try:
        await endpoint.start()
        if not is_warm:
            await warm_up(endpoint, load_prompts(MIXED))
        for cell in cells:
            speeds[cell] = await measure_cell(endpoint, cell, plan, round_index, max_depth)
            tell(describe(cell, speeds[cell]))
    finally:
        await endpoint.close()
    return speeds


def describe(cell: Cell, speed: float) -> str:
    """A line on one result."""
    return (
        f"  {cell.workload:<11}  {cell.concurrency} at once  "
        f"temperature {cell.temperature:g}  {speed:7.1f} tok/s"
    )
