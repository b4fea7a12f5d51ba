"""The simulator against the service: throughput at 1, 4 and 8 requests at once, off and on.

    python -m loadtest.record_steps --greedy --out build/steps.json
    python -m loadtest.simulator_check --steps build/steps.json --json loadtest/results/...

The same requests are answered by the service, a fixed number at a time, and by the simulator. It
knows of the service: how long steps take (those that were recorded on this machine, and where
there are none what the step-time model makes of the others, all scaled by one factor so that a
lone request at depth 0 gets its tokens as fast as in this run), and, by replaying the deployment's
draft over the answers, how far proposals agree. The speculation of both is the same code.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx
import numpy as np
import yaml

from loadtest.lookup_acceptance import Answer
from loadtest.measured_steps import MeasuredSteps
from loadtest.record_agreement import replay
from loadtest.step_time_error import Step, read_recorded
from specray.cli.bench.client import Endpoint, Request
from specray.cli.bench.plan import System
from specray.cli.bench.report import collect_meta
from specray.cli.bench.service import run_service
from specray.cli.bench.workloads import WORKLOADS, load_prompts
from specray.config import DraftConfig
from specray.control.roofline import StepLoad
from specray.control.step_time import StepTimeModel
from specray.draft.factory import make_proposer
from specray.draft.proposer import Proposer
from specray.simulate import requests as simulated
from specray.simulate.agreement import Agreement
from specray.simulate.cluster import ClusterSettings, simulate
from specray.simulate.draft import DraftSettings
from specray.simulate.network import NetworkSettings
from specray.simulate.step_laws import ConstantSteps
from specray.simulate.summary import summarise
from specray.simulate.target import TargetSettings
from specray.types import SpeculationPolicy

BATCHES = (1, 2, 4, 8)
TOKENS = (1, 2, 4, 6, 8, 12, 16)
PIECES = (32, 128)  # tokens of prefills, between which the cost of one is taken
Table = tuple[tuple[float, ...], ...]  # seconds of a step, by BATCHES and TOKENS of each request
SYSTEMS: tuple[System, ...] = ("off", "specray")
NUM_REQUESTS = {1: 4, 4: 12, 8: 16}  # by how many are in flight
CALIBRATED_AT = 1
NEAR, FEWEST = 0.2, 5  # a cell of the table is of so many steps, whose tokens are so near
KV_BLOCK = 128  # tokens; vLLM's on a CPU: whole blocks of a prompt are found in its prefix cache
LOOK_UP_S, ONE_WAY_S = 500e-6, 1e-3  # README: what drafting and the relay take on two busy cores


@dataclass(frozen=True, slots=True)
class Known:
    """A prompt and the service's greedy answer, in tokens."""

    text: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Measured:
    """One system with so many requests in flight, in one round."""

    num_at_once: int
    system: System
    tokens_per_s: float
    tpot_s: float  # median over the answers; single chunks gather for 50 ms in Ray Serve LLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="deployments/local.yaml")
    parser.add_argument("--steps", type=Path, required=True, help="of loadtest.record_steps")
    parser.add_argument("--url", help="a running service instead")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--max-depth", type=int, default=5, help="the service's")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    recorded = read_recorded(args.steps)["steps"]
    steps = [(StepLoad(*load), seconds) for *load, seconds, _ in recorded if load[1] > 0]
    draft = read_draft(Path(args.config))
    meta = collect_meta(sys.argv[1:], "python -m loadtest.simulator_check")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    rounds: list[list[Measured]] = []
    known: list[Known] = []
    with (
        nullcontext(args.url) if args.url else run_service(args.config) as url,
        suppress(KeyboardInterrupt),  # whole rounds are reported
    ):
        asyncio.run(measure(url, args.rounds, args.tokens, known, rounds))
    report(args.json, meta, known, rounds, args.max_depth, steps, draft)


def report(
    path: Path | None,
    meta: dict[str, str],
    known: Sequence[Known],
    rounds: Sequence[Sequence[Measured]],
    max_depth: int,
    steps: Sequence[Step],
    draft: DraftConfig,
) -> None:
    model = learn(steps)
    context = round(
        sum(len(one.answer.prompt) + len(one.answer.answer) / 2 for one in known) / len(known)
    )
    table = table_of(steps, model, context)
    factor = calibrate(rounds, table)
    law = MeasuredSteps(BATCHES, TOKENS, table, (factor,), factor * prefill_token_s(model))
    agreements = [agreement_of(one, make_proposer(draft)) for one in known]
    texts = list(zip(known, agreements, strict=True))
    policies = {
        "off": SpeculationPolicy(is_enabled=False),
        "specray": SpeculationPolicy(max_depth=max_depth),
    }
    rows = [
        compare(texts, rounds, law, at, system, policies[system])
        for at in NUM_REQUESTS
        for system in SYSTEMS
    ]
    for row in rows:
        print(
            f"{row['system']:<8} {row['num_at_once']} at once: measured "
            f"{row['measured']:6.1f} tok/s, simulated {row['simulated']:6.1f}, "
            f"error {row['error']:+.1%}{'  (calibrated here)' if row['is_calibrated'] else ''}"
        )
    if path is not None:
        result = {
            "meta": meta,
            "table": table,
            "factor": factor,
            "rows": rows,
            "rounds": [[asdict(cell) for cell in cells] for cells in rounds],
        }
        path.write_text(json.dumps(result, indent=1) + "\n")


async def measure(
    url: str,
    num_rounds: int,
    num_tokens: int,
    known: list[Known],
    rounds: list[list[Measured]],
) -> None:
    """Fills the lists; whoever interrupts it has the rounds before."""
    endpoint = Endpoint(url)
    await endpoint.start()
    groups = [load_prompts(workload) for workload in WORKLOADS]
    prompts = [prompt for group in zip(*groups, strict=False) for prompt in group]
    known += await answers(url, prompts[: max(NUM_REQUESTS.values())], num_tokens)
    for index in range(num_rounds):
        order = SYSTEMS if index % 2 == 0 else SYSTEMS[::-1]
        cells = [
            await measure_cell(endpoint, known, at, system)
            for at in NUM_REQUESTS
            for system in order
        ]
        speeds = ", ".join(f"{cell.tokens_per_s:.1f}" for cell in cells)
        print(f"round {index + 1}: {speeds}", flush=True)
        rounds.append(cells)
    await endpoint.close()


async def answers(url: str, prompts: Sequence[str], num_tokens: int) -> list[Known]:
    """The greedy answers, which also fill the prefix cache and let the planner learn."""
    async with httpx.AsyncClient(timeout=300.0) as http:
        model = (await http.get(f"{url}/models")).json()["data"][0]["id"]

        async def ask(prompt: str) -> Known:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": num_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            reply = await http.post(f"{url}/chat/completions", json=body)
            reply.raise_for_status()
            content = reply.json()
            prompt_ids, ids = content["prompt_token_ids"], content["choices"][0]["token_ids"]
            return Known(prompt, Answer("any", "greedy", prompt_ids, ids))

        return await asyncio.gather(*(ask(prompt) for prompt in prompts))


async def measure_cell(
    endpoint: Endpoint, known: Sequence[Known], num_at_once: int, system: System
) -> Measured:
    max_depth = 0 if system == "off" else None
    clock = asyncio.get_running_loop().time
    tpots_s: list[float] = []
    num_tokens = 0

    def requests() -> Iterator[Request]:
        for seed, one in enumerate(known[: NUM_REQUESTS[num_at_once]]):
            length = len(one.answer.answer)
            yield Request(one.text, 0.0, length, seed, max_depth, ignore_eos=True)

    async def work(queue: Iterator[Request]) -> None:
        nonlocal num_tokens
        for request in queue:
            times: list[float] = []
            counts: list[int] = []
            await endpoint.complete(
                request, lambda n, t=times, c=counts: (t.append(clock()), c.append(n))
            )
            tpots_s.append((times[-1] - times[0]) / sum(counts[1:]))
            num_tokens += sum(counts)

    queue = requests()
    began = clock()
    async with asyncio.TaskGroup() as group:
        for _ in range(num_at_once):
            group.create_task(work(queue))
    return Measured(num_at_once, system, num_tokens / (clock() - began), median(tpots_s))


def read_draft(path: Path) -> DraftConfig:
    (application,) = yaml.safe_load(path.read_text())["applications"]
    return DraftConfig.model_validate(application["args"].get("draft") or {})


def learn(steps: Sequence[Step]) -> StepTimeModel:
    """What a model of step times learns from recorded steps."""
    model = StepTimeModel()
    for load, seconds in steps:
        model.observe(load, seconds)
    return model


def table_of(steps: Sequence[Step], model: StepTimeModel, context: int) -> Table:
    """Greedy steps of requests with so many tokens.

    The model's are corrected by what recorded steps about as large took against it: a CPU's
    kernels are slower at some numbers of rows than at more of them, which it can't follow.
    """
    return tuple(
        tuple(
            model.step_s(StepLoad(size, size * each, size * context))
            * off_by(steps, model, size, size * each)
            for each in TOKENS
        )
        for size in BATCHES
    )


def off_by(steps: Sequence[Step], model: StepTimeModel, size: int, num_tokens: int) -> float:
    found = [
        seconds / model.step_s(load)
        for load, seconds in steps
        if load.num_requests == size
        and load.num_prefill_tokens == 0
        and abs(load.num_tokens - num_tokens) <= NEAR * (num_tokens - size)
    ]
    return (
        mean(sorted(found)[len(found) // 20 : len(found) - len(found) // 20])
        if len(found) >= FEWEST
        else 1.0
    )


def prefill_token_s(model: StepTimeModel) -> float:
    few, many = (model.step_s(StepLoad(1, piece, piece, 0, piece)) for piece in PIECES)
    return (many - few) / (PIECES[1] - PIECES[0])


def calibrate(rounds: Sequence[Sequence[Measured]], table: Table) -> float:
    """This run's plain steps over the recorded ones."""
    cells = [c for cells in rounds for c in cells if is_cell(c, CALIBRATED_AT, "off")]
    return median(c.tpot_s for c in cells) / table[BATCHES.index(CALIBRATED_AT)][0]


def is_cell(cell: Measured, num_at_once: int, system: System) -> bool:
    return (cell.num_at_once, cell.system) == (num_at_once, system)


def compare(
    texts: Sequence[tuple[Known, Agreement]],
    rounds: Sequence[Sequence[Measured]],
    law: MeasuredSteps,
    num_at_once: int,
    system: System,
    policy: SpeculationPolicy,
) -> dict[str, Any]:
    cells = [c for cells in rounds for c in cells if is_cell(c, num_at_once, system)]
    measured = median(cell.tokens_per_s for cell in cells)
    settings = ClusterSettings(
        TargetSettings(law, policy, max_num_seqs=16),
        DraftSettings(ConstantSteps(LOOK_UP_S), "prompt_lookup", ahead_hit_rate=1.0),
        network=NetworkSettings(ONE_WAY_S),
    )
    # What the service has learnt before it is measured, the simulator learns from the same texts.
    asked = [*texts, *texts[: NUM_REQUESTS[num_at_once]]]
    requests = [to_simulate(*text, number) for number, text in enumerate(asked)]
    run = simulate(settings, requests, num_at_once=num_at_once)
    first = run.requests[len(texts)].arrived_s
    figures = summarise(run, first)
    simulated_speed = figures.tokens_per_s
    return {
        "num_at_once": num_at_once,
        "system": system,
        "measured": round(measured, 2),
        "simulated": round(simulated_speed, 2),
        "error": round(simulated_speed / measured - 1, 4),
        "is_calibrated": system == "off" and num_at_once == CALIBRATED_AT,
        "simulated_depth": round(figures.mean_depth, 3),
        "simulated_acceptance": round(figures.acceptance_rate, 3),
    }


def agreement_of(one: Known, draft: Proposer) -> Agreement:
    found = replay(one.answer, draft)
    return Agreement(np.array(found["proposed"]), np.array(found["right"]))


def to_simulate(one: Known, agreement: Agreement, number: int) -> simulated.Request:
    num_prompt = len(one.answer.prompt)
    num_cached = (num_prompt - 1) // KV_BLOCK * KV_BLOCK
    return simulated.Request(number, 0.0, num_prompt, num_cached, len(one.answer.answer), agreement)


if __name__ == "__main__":
    main()
