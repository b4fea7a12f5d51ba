"""Writes down what each step of a live service held and how long it took.

    python -m loadtest.record_steps --out loadtest/results/steps.json

Starts `deployments/local.yaml` with a scheduler that keeps a journal, and sends it the bench's
prompts by 1 to 16 at once, half of the time plain and half with depths of all sizes; for
`loadtest.step_time_error`. With `--engine-only` there is no Ray, only vLLM's engine with our
plug-ins and a prompt lookup.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoTokenizer
from vllm import SamplingParams

from loadtest.step_time_error import COLUMNS
from specray.cli import main as specray
from specray.cli import serve
from specray.cli.bench.client import Endpoint, Request
from specray.cli.bench.report import collect_meta
from specray.cli.bench.service import run_service
from specray.cli.bench.workloads import WORKLOADS, load_prompts
from specray.config import PromptLookupConfig
from specray.draft.prompt_lookup import PromptLookup
from specray.models.sources import resolve
from specray.serve import app, settings
from specray.target.scheduler import SpeculativeScheduler
from tests.target.engine import Engine, FakeRouter, Job, specray_engine, speculating

SERVE = "serve-recorded"
THIS = "loadtest.record_steps"
JOURNAL = "journal"
JOURNAL_PATH = "SPECRAY_STEP_JOURNAL"  # to the engine core of this process's engine
SIZES = (1, 4, 2, 8, 1, 16, 3, 12, 6)  # requests at once, one after the other
TEMPERATURES = (0.0, 0.8)  # of the requests, in turn
DEPTHS = (None, 0, 2, None, 1, 5)  # caps of the requests, in turn
PLAIN = (0,)


class RecordingScheduler(SpeculativeScheduler):
    """Keeps a journal of steps: a `StepLoad`'s numbers, seconds, whether without prefill."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._steps_file = Path(
            os.environ.get(JOURNAL_PATH) or vllm_config.additional_config[JOURNAL]
        )

    def update_from_output(self, *args: Any) -> Any:
        step = self._step
        seconds = time.monotonic() - step.started
        line = [*step.load, round(seconds, 6), int(step.load.is_decode_only)]
        with self._steps_file.open("a") as steps:
            steps.write(json.dumps(line) + "\n")
        return super().update_from_output(*args)


def build_app(args: dict[str, Any]) -> Any:
    settings.SCHEDULER_CLS = f"{THIS}.RecordingScheduler"
    return app.build_app(args)


class CappedEndpoint(Endpoint):
    """Gives each request a cap of its own on the depth."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.follow(DEPTHS)

    def follow(self, caps: tuple[int | None, ...]) -> None:
        """From now on, over and over."""
        self._caps = itertools.cycle(caps)

    def _body(self, request: Request) -> dict[str, Any]:
        cap = next(self._caps)
        args = {} if cap is None else {"vllm_xargs": {"num_speculative_tokens": cap}}
        return super()._body(request) | args


def main() -> None:
    if sys.argv[1:2] == [SERVE]:
        serve.BUILDER = f"{THIS}:build_app"
        specray(["serve", sys.argv[2]])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("deployments/local.yaml"))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=16.0, help="for each number at once")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--greedy", action="store_true", help="no request samples")
    parser.add_argument("--engine-only", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    journal = args.out.absolute().with_suffix(".journal")  # left behind when something breaks
    journal.unlink(missing_ok=True)
    temperatures = TEMPERATURES[:1] if args.greedy else TEMPERATURES
    if args.engine_only:
        load_engine(journal, SIZES * args.rounds, args.seconds, temperatures)
    else:
        load_service(args, journal, temperatures)
    steps = [json.loads(line) for line in journal.read_text().splitlines()]
    result = {"meta": collect_meta(sys.argv[1:], f"python -m {THIS}"), "columns": COLUMNS}
    rows = ",\n".join(json.dumps(step) for step in steps)
    journal.unlink()
    args.out.write_text(json.dumps(result)[:-1] + f', "steps": [\n{rows}\n]}}\n')
    print(f"{len(steps)} steps in {args.out}")


def load_service(args: argparse.Namespace, journal: Path, temperatures: tuple[float, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "recorded.yaml"
        config.write_text(recorded(args.config, args.port, journal))
        serve_it = [sys.executable, "-m", THIS, SERVE, str(config)]
        with run_service(str(config), serve_it) as url:
            asyncio.run(load(url, SIZES * args.rounds, args.seconds, temperatures))


def load_engine(
    journal: Path, sizes: tuple[int, ...], seconds: float, temperatures: tuple[float, ...]
) -> None:
    """Keep so many requests running for so long, each number in turn."""
    model = resolve("bundled:smollm2-135m-instruct")
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = [tokenizer(p).input_ids for kind in WORKLOADS for p in load_prompts(kind)]
    turns = itertools.count()
    extra = {
        "max_model_len": 4096,
        "max_num_seqs": 16,
        "scheduler_cls": f"{THIS}.RecordingScheduler",
    }
    with recording_engine(model, journal, extra) as engine:
        lookup = PromptLookup(PromptLookupConfig())
        with FakeRouter(engine.address, lookup):
            for size, depths in itertools.product(sizes, (PLAIN, DEPTHS)):
                print(f"{size} at once", flush=True)
                caps = itertools.cycle(depths)
                ends = time.monotonic() + seconds / 2
                while time.monotonic() < ends:
                    engine.run(
                        [
                            make_job(prompts, next(turns), next(caps), temperatures)
                            for _ in range(size)
                        ]
                    )


@contextmanager
def recording_engine(model: str, journal: Path, extra: dict[str, Any]) -> Iterator[Engine]:
    """The tests' engine, whose own journal goes where it is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(model).iterdir():
            (Path(folder) / file.name).symlink_to(file)
        os.environ[JOURNAL_PATH] = str(journal)
        with specray_engine(Path(folder), **extra) as engine:
            yield engine


def make_job(
    prompts: list[list[int]], turn: int, cap: int | None, temperatures: tuple[float, ...]
) -> Job:
    temperature = temperatures[turn % len(temperatures)]
    max_tokens = 24 + 8 * (turn % 5)
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens, ignore_eos=True, seed=turn
    )
    prompt = tuple(prompts[7 * turn % len(prompts)])
    return Job(prompt, speculating(params, cap), start=4 * (turn % 8))


def recorded(file: Path, port: int, journal: Path, module: str = THIS) -> str:
    """The config with the journal's path, which reaches the module's scheduler through vLLM."""
    config = yaml.safe_load(file.read_text())
    config["http_options"]["port"] = port
    application = config["applications"][0]
    application["import_path"] = f"{module}:build_app"
    application["args"]["target"]["engine_kwargs"]["additional_config"] = {JOURNAL: str(journal)}
    return yaml.safe_dump(config)


async def load(
    url: str, sizes: tuple[int, ...], seconds: float, temperatures: tuple[float, ...]
) -> None:
    endpoint = CappedEndpoint(url)
    await endpoint.start()
    prompts = [prompt for workload in WORKLOADS for prompt in load_prompts(workload)]
    turns = itertools.count()
    for size, caps in itertools.product(sizes, (PLAIN, DEPTHS)):
        print(f"{size} at once", flush=True)
        endpoint.follow(caps)
        async with asyncio.TaskGroup() as workers:
            for _ in range(size):
                workers.create_task(work(endpoint, prompts, turns, seconds / 2, temperatures))
    await endpoint.close()


async def work(
    endpoint: Endpoint,
    prompts: list[str],
    turns: "itertools.count[int]",
    seconds: float,
    temperatures: tuple[float, ...],
) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        turn = next(turns)
        temperature, max_tokens = temperatures[turn % len(temperatures)], 24 + 8 * (turn % 5)
        prompt = prompts[7 * turn % len(prompts)]
        request = Request(prompt, temperature, max_tokens, seed=turn, ignore_eos=True)
        await endpoint.complete(request, lambda _: None)


if __name__ == "__main__":
    main()
