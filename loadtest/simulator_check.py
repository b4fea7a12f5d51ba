"""The simulator against the service: throughput at 1, 4 and 8 requests at once, off and on.

    python -m loadtest.record_steps --out build/steps.json
    python -m loadtest.simulator_check --steps build/steps.json --json loadtest/results/...

The same requests are answered by the service, a fixed number at a time, and by the simulator. It
knows of the service: how long steps take (what the step-time model makes of steps that were
recorded on this machine, scaled so that plain steps of 1 and 8 requests take the median time
between the chunks of this run's own answers at depth 0), and, by replaying the deployment's draft
over the answers, how far proposals agree. The speculation of both is the same code.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import yaml

from loadtest.lookup_acceptance import Answer
from loadtest.record_agreement import replay
from loadtest.step_time_error import read_recorded
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
from specray.simulate.step_laws import ConstantSteps, MeasuredSteps
from specray.simulate.summary import summarise
from specray.simulate.target import TargetSettings
from specray.types import SpeculationPolicy

BATCHES = (1, 2, 4, 8)
TOKENS = (1, 2, 4, 6, 8, 12, 16)
PIECES = (32, 128)  # tokens of prefills, between which the cost of one is taken
Table = tuple[tuple[float, ...], ...]  # seconds of a step, by BATCHES and TOKENS of each request
SYSTEMS: tuple[System, ...] = ("off", "specray")
NUM_REQUESTS = {1: 4, 4: 12, 8: 16}  # by how many are in flight
CALIBRATED_AT = (1, 8)
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
    step_s: float  # median time between chunks of an answer


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
    model = learnt_model(args.steps)
    draft = read_draft(Path(args.config))
    meta = collect_meta([])
    meta["command"] = " ".join(["python -m loadtest.simulator_check", *sys.argv[1:]])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    rounds: list[list[Measured]] = []
    known: list[Known] = []
    with (
        nullcontext(args.url) if args.url else run_service(args.config) as url,
        suppress(KeyboardInterrupt),  # whole rounds are reported
    ):
        asyncio.run(measure(url, args.rounds, args.tokens, known, rounds))
    report(args.json, meta, known, rounds, args.max_depth, model, draft)


def report(
    path: Path | None,
    meta: dict[str, str],
    known: Sequence[Known],
    rounds: Sequence[Sequence[Measured]],
    max_depth: int,
    model: StepTimeModel,
    draft: DraftConfig,
) -> None:
    context = round(
        sum(len(one.answer.prompt) + len(one.answer.answer) / 2 for one in known) / len(known)
    )
    table = table_of(model, context)
    factors = calibrate(rounds, table)
    law = MeasuredSteps(BATCHES, TOKENS, table, tuple(factors), prefill_token_s(model) * factors[0])
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
            "factors": factors,
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
    gaps: list[float] = []
    num_tokens = 0

    def requests() -> Iterator[Request]:
        for seed, one in enumerate(known[: NUM_REQUESTS[num_at_once]]):
            yield Request(one.text, 0.0, len(one.answer.answer), seed, max_depth)

    async def work(queue: Iterator[Request]) -> None:
        nonlocal num_tokens
        for request in queue:
            times: list[float] = []
            counts: list[int] = []
            await endpoint.complete(
                request, lambda n, t=times, c=counts: (t.append(clock()), c.append(n))
            )
            gaps.extend(later - earlier for earlier, later in pairwise(times))
            num_tokens += sum(counts)

    queue = requests()
    began = clock()
    async with asyncio.TaskGroup() as group:
        for _ in range(num_at_once):
            group.create_task(work(queue))
    return Measured(num_at_once, system, num_tokens / (clock() - began), median(gaps))


def read_draft(path: Path) -> DraftConfig:
    (application,) = yaml.safe_load(path.read_text())["applications"]
    return DraftConfig.model_validate(application["args"].get("draft") or {})


def learnt_model(path: Path) -> StepTimeModel:
    """What a model of step times learns from recorded steps."""
    model = StepTimeModel()
    for *load, seconds, _ in read_recorded(path)["steps"]:
        model.observe(StepLoad(*load), seconds)
    return model


def table_of(model: StepTimeModel, context: int) -> Table:
    """Greedy steps of requests with so many tokens."""
    return tuple(
        tuple(model.step_s(StepLoad(size, size * each, size * context)) for each in TOKENS)
        for size in BATCHES
    )


def prefill_token_s(model: StepTimeModel) -> float:
    few, many = (model.step_s(StepLoad(1, piece, piece, 0, piece)) for piece in PIECES)
    return (many - few) / (PIECES[1] - PIECES[0])


def calibrate(rounds: Sequence[Sequence[Measured]], table: Table) -> list[float]:
    """This machine's plain steps over the table's, by the table's rows."""
    factors = []
    for at in CALIBRATED_AT:
        here_s = median(c.step_s for cells in rounds for c in cells if is_cell(c, at, "off"))
        factors.append(here_s / table[BATCHES.index(at)][0])
    return [round(float(f), 4) for f in np.interp(BATCHES, CALIBRATED_AT, factors)]


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
        "is_calibrated": system == "off" and num_at_once in CALIBRATED_AT,
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
