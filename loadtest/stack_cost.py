"""What the whole stack adds to a decode step: HTTP, Serve and our scheduler against bare vLLM.

Streams answers at depth 0 from a running service, and steps the same model with vLLM's
`LLMEngine` in this process, in turn. Both use the same core, one at a time. The service's step is
how much longer an answer with `--tokens` more takes, for each of them: Ray Serve LLM sends what it
has gathered for 50 ms, so that single chunks say nothing of steps.

    specray serve deployments/local.yaml                  # in another terminal
    python -m loadtest.stack_cost --core 1 --json loadtest/results/stack-cost.json
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from specray.cli.bench.report import collect_meta

_FEWEST = 16  # tokens, behind which steps are compared: the prefill is not
PROMPT = "Write a short story about a fox and a robot."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="bundled:smollm2-135m-instruct")
    parser.add_argument("--core", type=int, default=1, help="the target's core")
    parser.add_argument("--tokens", type=int, default=256, help="50 ms are 1 %% of their steps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    meta = collect_meta(sys.argv[1:], "python -m loadtest.stack_cost")
    engine = start_engine(args.model, args.core)
    rounds: list[dict[str, float]] = []
    for round_number in range(args.rounds):
        bare = bare_step_s(engine, args.tokens)
        stack = stack_step_s(args.url, args.tokens)
        row = {"bare_ms": 1e3 * bare, "stack_ms": 1e3 * stack, "ratio": stack / bare}
        rounds.append({name: round(value, 3) for name, value in row.items()})
        print(
            f"round {round_number + 1}: bare vLLM {bare * 1e3:.1f} ms, "
            f"through the stack {stack * 1e3:.1f} ms, ratio {stack / bare:.3f}",
            flush=True,
        )
    ratio = statistics.median(row["ratio"] for row in rounds)
    print(f"median ratio {ratio:.3f}")
    if args.json is not None:
        result = {"meta": meta, "rounds": rounds, "median_ratio": ratio}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def start_engine(model: str, core: int) -> Any:
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
    }
    os.sched_setaffinity(0, {core})
    from vllm import EngineArgs, LLMEngine

    from specray.models.sources import resolve

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=resolve(model),
            dtype="float32",
            max_model_len=4096,
            max_num_seqs=16,
            enforce_eager=True,
            enable_prefix_caching=True,
            async_scheduling=False,
        )
    )


def bare_step_s(engine: Any, num_tokens: int) -> float:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=_FEWEST + num_tokens, ignore_eos=True)
    engine.add_request(f"bare-{time.monotonic_ns()}", PROMPT, params)
    steps = []
    while engine.has_unfinished_requests():
        started = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - started)
    return statistics.fmean(steps[_FEWEST:])


def stack_step_s(url: str, num_tokens: int) -> float:
    longer_s, shorter_s = (answer_s(url, num) for num in (_FEWEST + num_tokens, _FEWEST))
    return (longer_s - shorter_s) / num_tokens


def answer_s(url: str, num_tokens: int) -> float:
    model = httpx.get(f"{url}/models").json()["data"][0]["id"]
    body = {
        "model": model,
        "prompt": PROMPT,
        "temperature": 0,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
        "vllm_xargs": {"num_speculative_tokens": 0},
    }
    started = time.perf_counter()
    with httpx.stream("POST", f"{url}/completions", json=body, timeout=300.0) as reply:
        reply.raise_for_status()
        for _ in reply.iter_lines():
            pass
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
