"""What a token costs on its way to the client: through Serve's proxy and a router, or direct.

Starts the service both ways in turn, streams answers of the same prompts from it, and counts the
CPU time of what lies between engine and client (HAProxy, proxy, router, the target's replica), per
token; besides, how fast tokens come, how long the first takes, and how many come at a time.

    python -m loadtest.streaming_cost --at-once 8 --json loadtest/results/streaming-cost-COMMIT.json
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil

from specray.cli.bench.client import Endpoint, Request
from specray.cli.bench.report import collect_meta
from specray.cli.bench.service import find_ready_url, running, serve_command
from specray.cli.bench.workloads import MIXED, load_prompts

WAYS = {"routed": [], "direct": ["--direct-streaming"]}
ON_THE_WAY = [
    *(f"ServeReplica:specray:{name}" for name in ["target", "router", "LLMRouter"]),
    *["ProxyActor", "HAProxyManager", "bin/haproxy"],
]
MAX_TOKENS = 96

Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="deployments/local-hybrid.yaml")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--depth", type=int, help="caps each request's; 0 for no speculation")
    parser.add_argument("--answers", type=int, default=48, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    meta = collect_meta(sys.argv[1:], "python -m loadtest.streaming_cost")
    rows: dict[str, list[Row]] = {way: [] for way in WAYS}
    for round_number in range(args.rounds):
        for way, options in WAYS.items():
            with running(serve_command(args.config, *options), find_ready_url) as service:
                numbers = count()
                asyncio.run(measure(service.url, numbers, args.at_once, args.depth, args.at_once))
                before = cpu_s()
                row = asyncio.run(
                    measure(service.url, numbers, args.at_once, args.depth, args.answers)
                )
                num_tokens = args.answers * MAX_TOKENS
                spent = {pid: cpu - before.get(pid, 0.0) for pid, cpu in cpu_s().items()}
                row["cpu_ms_per_token"] = 1e3 * sum(spent.values()) / num_tokens
            rows[way].append({name: round(value, 3) for name, value in row.items()})
            print(f"round {round_number + 1}, {way}: {rows[way][-1]}", flush=True)
    medians = {
        way: {name: statistics.median(row[name] for row in rows[way]) for name in rows[way][0]}
        for way in WAYS
    }
    for name, value in medians["direct"].items():
        routed = medians["routed"][name]
        print(f"{name}: routed {routed:.3g}, direct {value:.3g}, ratio {value / routed:.2f}")
    if args.json is not None:
        result = {"meta": meta, "rounds": rows, "medians": medians}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


async def measure(
    url: str, numbers: Iterator[int], at_once: int, depth: int | None, num_answers: int
) -> Row:
    """Tokens a second, milliseconds to the first, tokens in a chunk (means)."""
    endpoint = Endpoint(url)
    await endpoint.start()
    prompts = load_prompts(MIXED)
    firsts: list[float] = []
    chunks: list[int] = []
    left = iter(range(num_answers))

    async def work() -> None:
        for _ in left:
            began = time.perf_counter()
            arrivals: list[float] = []

            def hear(num_tokens: int, at: list[float] = arrivals) -> None:
                at.append(time.perf_counter())
                chunks.append(num_tokens)

            number = next(numbers)
            prompt = prompts[number % len(prompts)]
            request = Request(prompt, 0.0, MAX_TOKENS, number, depth, ignore_eos=True)
            await endpoint.complete(request, hear)
            firsts.append(arrivals[0] - began)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    seconds = time.perf_counter() - began
    await endpoint.close()
    return {
        "tokens_per_s": num_answers * MAX_TOKENS / seconds,
        "ttft_ms": 1e3 * statistics.mean(firsts),
        "tokens_per_chunk": statistics.mean(chunks),
    }


def cpu_s() -> dict[int, float]:
    """CPU seconds of each process that answers pass."""
    times = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if any(part in " ".join(process.cmdline()) for part in ON_THE_WAY):
                used = process.cpu_times()
                times[process.pid] = used.user + used.system
        except psutil.Error:  # it has ended
            continue
    return times


if __name__ == "__main__":
    main()
