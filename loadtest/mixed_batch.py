"""A batch of unlike requests: half copy a text, half chat at temperature 1.

    python -m loadtest.mixed_batch --json loadtest/results/mixed-batch.json

Eight requests at a time, by the service's own depths and by uniform ones, switched live. A uniform
depth is either too deep for one half or too shallow for the other.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from specray.cli.bench.client import Endpoint, Request
from specray.cli.bench.load import count_tokens
from specray.cli.bench.report import collect_meta
from specray.cli.bench.runner import warm_up
from specray.cli.bench.sweep.plan import SYSTEMS
from specray.cli.bench.sweep.service import LiveService, run_live_service
from specray.cli.bench.workloads import load_prompts

AT_ONCE = 8
UNIFORM = tuple(system for system in SYSTEMS if system not in ("table", "specray"))
_SETTLE_S = 2.5  # until a changed policy has reached the target
_COPY = "Repeat the following text word for word, and nothing else:\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="deployments/local.yaml")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--window-s", type=float, default=12.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    meta = collect_meta(sys.argv[1:], "python -m loadtest.mixed_batch")
    with run_live_service(args.config) as service:
        rounds = asyncio.run(measure(service, args.rounds, args.window_s))
    result = {"meta": meta, "at_once": AT_ONCE, "rounds": rounds, **verdict(rounds)}
    print(json.dumps({name: result[name] for name in ("medians", "best_uniform", "ratio")}))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


async def measure(service: LiveService, num_rounds: int, window_s: float) -> list[dict[str, float]]:
    """Tokens per second of every system, round by round; their order turns."""
    endpoint = Endpoint(service.url)
    await endpoint.start()
    await warm_up(endpoint, load_prompts("mixed"))
    systems = (*UNIFORM, "specray")
    rounds: list[dict[str, float]] = []
    try:
        for index in range(num_rounds):
            speeds = {}
            for system in systems[index:] + systems[:index]:
                service.become(system)
                await asyncio.sleep(_SETTLE_S)
                queues = workers(0 if system == "off" else None, index)
                tokens = await count_tokens(endpoint, queues, ramp_s=3.0, window_s=window_s)
                speeds[system] = round(tokens / window_s, 2)
                print(f"round {index + 1}: {system:<8} {speeds[system]:6.1f} tok/s", flush=True)
            rounds.append(speeds)
    finally:
        await endpoint.close()
    return rounds


def workers(max_depth: int | None, round_index: int) -> list[Iterator[Request]]:
    """For each worker its endless requests: the same for every system of a round."""
    chat = load_prompts("chat")
    texts = [prompt.partition("\n\n")[2] for prompt in load_prompts("summarising")]

    def queue(worker: int) -> Iterator[Request]:
        for turn in count(round_index * AT_ONCE + worker, AT_ONCE):
            is_copy = worker % 2 == 0
            prompt = _COPY + texts[turn % len(texts)] if is_copy else chat[turn % len(chat)]
            temperature = 0.0 if is_copy else 1.0
            # Of one length, so that half of the answers are copies at any time.
            yield Request(prompt, temperature, 120, turn, max_depth, ignore_eos=True)

    return [queue(worker) for worker in range(AT_ONCE)]


def verdict(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Ours over the best uniform depth; ratios are of the same round."""
    medians = {system: median(speeds[system] for speeds in rounds) for system in rounds[0]}
    best = max(UNIFORM, key=medians.__getitem__)
    return {
        "medians": medians,
        "best_uniform": best,
        "ratio": round(median(speeds["specray"] / speeds[best] for speeds in rounds), 3),
    }


if __name__ == "__main__":
    main()
