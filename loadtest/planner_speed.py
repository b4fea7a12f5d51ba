"""What planning a step costs.

    python -m loadtest.planner_speed
    python -m loadtest.planner_speed --cold --requests 1 --depth 5

The first with all that it needs in the caches, as beside a GPU; `--cold` with none of it, as on the
core of a CPU target, which reads all its weights in each step. Where speculation "is off", as it
does not pay, what is wanted after a step takes the time of one that does not look whether it does.
"""

import argparse
import json
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from specray.cli.bench.report import collect_meta
from specray.control.acceptance import request_acceptance
from specray.control.depth import Batch, plan_depths
from specray.control.planner import Planner
from specray.control.roofline import StepLoad
from specray.control.survival import Offer, Verification

REPEATS = 3  # a few at a time: the best of many is little disturbed by other processes
CONTEXT = 500  # tokens of a request
COLD_REPEATS = 60
WEIGHTS = 256 * 2**20  # bytes, more than caches hold
SEEN = 80  # steps, after which a planner is no longer new
STEPS_AT_ONCE = 4  # that a planner learns from then


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--cold", action="store_true", help="after each time reading much else")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    clock = cold if args.cold else us
    print(f"{args.requests} requests, depth up to {args.depth}; microseconds")
    for name, cost in (("memory-bound", 1e-5), ("near the ridge", 1e-4), ("beyond it", 5e-3)):
        row = {"steps are": name} | measure(args.requests, args.depth, cost, clock)
        rows.append(row)
        print(json.dumps(row))
    if args.json:
        meta = collect_meta([]) | {"command": command()}
        args.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")


def measure(
    num_requests: int, depth: int, cost: float, clock: Callable[[Callable[[], Any]], float]
) -> dict[str, float]:
    rng = random.Random(0)
    offers = [make_offer(rng, depth) for _ in range(num_requests)]
    later = [offer._replace(confidences=()) for offer in offers]
    load = StepLoad(num_requests, num_requests, CONTEXT * num_requests)
    planner = Planner()
    for i in range(SEEN):
        n = num_requests + 7 * i % (num_requests * depth)
        planner.observe_step(load._replace(num_tokens=n), 0.03 + cost * n)
    step_s = 0.03 + cost * num_requests
    planner.observe_step(load, step_s)
    planner.learn()
    chains, batch = planner.survival.chains(offers), Batch(load, num_requests)
    verifications = [Verification(offer, depth // 2) for offer in offers]
    plan = plan_depths(chains, batch, planner.step_time)
    wait = lambda depth: 0.002 + 0.0005 * depth  # noqa: E731 - too small for a name of its own

    def learn() -> None:
        planner.observe_step(load, step_s)
        for offer, num_accepted in verifications:
            planner.observe_verification(offer, num_accepted)
        planner.learn()

    def learn_at_once() -> None:
        for _ in range(STEPS_AT_ONCE):
            planner.observe_step(load, step_s)
            for offer, num_accepted in verifications:
                planner.observe_verification(offer, num_accepted)
        planner.learn()

    times = {
        "draft tokens": sum(plan.depths),
        "plan_depths": clock(lambda: plan_depths(chains, batch, planner.step_time)),
        "survivals": clock(lambda: planner.survival.chains(offers)),
        "before a step": clock(lambda: planner.plan(offers, 0)),
        "after a step": clock(lambda: planner.wanted_depths(later, 0, wait)),
        "learning from a step": clock(lambda: planner.step_time.observe(load, step_s)),
        "learning from verifications": clock(lambda: planner.survival.observe(verifications)),
        "learning a step": clock(learn),
        f"learning {STEPS_AT_ONCE} at once, each": round(clock(learn_at_once) / STEPS_AT_ONCE, 1),
    }
    return times | {"is off": planner.is_off}


def make_offer(rng: random.Random, depth: int) -> Offer:
    acceptance, rate = request_acceptance(), rng.uniform(0.3, 0.95)
    for _ in range(40):
        acceptance.observe(depth, round(rate * depth))
    confidences = tuple(rng.uniform(0.2, 0.99) for _ in range(depth))
    return Offer(acceptance, "model", depth, 0.0, confidences)


def us(call: Callable[[], Any]) -> float:
    return round(min(timeit.repeat(call, number=REPEATS, repeat=300)) / REPEATS * 1e6, 1)


def cold(call: Callable[[], Any]) -> float:
    """The median, each after a pass over weights."""
    weights = np.ones(WEIGHTS // 4, np.float32)
    seconds: list[float] = []
    for _ in range(COLD_REPEATS):
        weights.sum()
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return round(statistics.median(seconds) * 1e6, 1)


def command() -> str:
    return " ".join(["python -m loadtest.planner_speed", *sys.argv[1:]])


if __name__ == "__main__":
    main()
