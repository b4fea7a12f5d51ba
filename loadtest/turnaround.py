"""From the end of a verification to the start of the next, in the engine's process, on hits.

    python -m loadtest.turnaround --json loadtest/results/turnaround-COMMIT.json

Starts `deployments/local-hybrid.yaml` with a scheduler that writes each turnaround down, and sends
it the bench's prompts, one at a time and eight. A hit is a step that verifies a draft's proposal
and was not held back for any: what lies between is to take in the tokens, to tell drafts, to choose
depths, and vLLM's own scheduling. `lookups` says what became of the proposals that commits asked
for, in all steps of the time: there when their step was scheduled, there later, or never.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from loadtest import record_steps
from loadtest.record_steps import CappedEndpoint, recorded, work
from specray.cli import main as specray
from specray.cli import serve
from specray.cli.bench.report import collect_meta
from specray.cli.bench.service import run_service
from specray.cli.bench.workloads import WORKLOADS, load_prompts
from specray.serve import app, settings
from specray.target.scheduler import SpeculativeScheduler

THIS = "loadtest.turnaround"
UNCAPPED = (None,)
BOUND_S = 0.0015
SIZES = (1, 8)  # requests at once


class TimingScheduler(SpeculativeScheduler):
    """Keeps a journal of steps: requests, seconds if on a hit, and all hits, late and misses."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._file = Path(vllm_config.additional_config[record_steps.JOURNAL])

    def _observe_turnaround(self) -> None:
        stats = self._speculation._counters.stats
        hits = stats.turnaround_time
        count, sum_s = hits.count, hits.sum_s
        super()._observe_turnaround()
        step = [
            self._step.load.num_requests,
            hits.sum_s - sum_s if hits.count > count else None,
            [stats.num_hits, stats.num_late, stats.num_absent],
        ]
        with self._file.open("a") as file:
            file.write(f"{json.dumps(step)}\n")


def build_app(args: dict[str, Any]) -> Any:
    settings.SCHEDULER_CLS = f"{THIS}.TimingScheduler"
    return app.build_app(args)


def num_lines(journal: Path) -> int:
    return len(journal.read_text().splitlines())


async def load(url: str, seconds: float, temperature: float, journal: Path) -> list[int]:
    """Returns how many lines the journal had after each number at once."""
    ends = []
    endpoint = CappedEndpoint(url)
    await endpoint.start()
    endpoint.follow(UNCAPPED)
    prompts = [prompt for workload in WORKLOADS for prompt in load_prompts(workload)]
    turns = itertools.count()
    for size in SIZES:
        async with asyncio.TaskGroup() as workers:
            for _ in range(size):
                workers.create_task(work(endpoint, prompts, turns, seconds, (temperature,)))
        ends.append(num_lines(journal))
    await endpoint.close()
    return ends


def summary(
    size: int, turnarounds_s: list[float], before: list[int], after: list[int]
) -> dict[str, Any]:
    """What a step of so many requests took, in milliseconds, and what was there in all."""
    outcomes = zip(("hit", "late", "miss"), before, after, strict=True)
    known = {
        "requests": size,
        "lookups": {name: last - first for name, first, last in outcomes},
        "hits": len(turnarounds_s),
    }
    if len(turnarounds_s) < 2:  # too few for quantiles
        return known
    return known | {
        "median_ms": round(1e3 * median(turnarounds_s), 3),
        "p95_ms": round(1e3 * quantiles(turnarounds_s, n=20)[-1], 3),
        "share_within_1.5_ms": round(
            sum(s <= BOUND_S for s in turnarounds_s) / len(turnarounds_s), 3
        ),
    }


def main() -> None:
    if sys.argv[1:2] == [record_steps.SERVE]:
        serve.BUILDER = f"{THIS}:build_app"
        specray(["serve", sys.argv[2]])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("deployments/local-hybrid.yaml"))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each number at once")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        journal, config = Path(folder) / "journal", Path(folder) / "timed.yaml"
        journal.touch()
        config.write_text(recorded(args.config, args.port, journal, THIS))
        with run_service(
            str(config), [sys.executable, "-m", THIS, record_steps.SERVE, str(config)]
        ) as url:
            ends = asyncio.run(load(url, args.seconds, args.temperature, journal))
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
    rows = []
    for size, start, end in zip(SIZES, (0, *ends), ends, strict=False):
        found = [s for requests, s, _ in lines[start:end] if requests == size and s is not None]
        before = lines[start - 1][2] if start else [0, 0, 0]
        rows += [summary(size, found, before, lines[end - 1][2])] if len(found) > 1 else []
    result = {"meta": collect_meta(sys.argv[1:], f"python -m {THIS}"), "rows": rows}
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
