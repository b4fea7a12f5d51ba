"""What planning a step costs: `python -m loadtest.planner_speed`."""

import argparse
import random
import timeit

from specray.control.acceptance import request_acceptance
from specray.control.depth import Candidate, plan_depths
from specray.control.planner import Offer, Planner
from specray.control.step_time import StepTimeModel

REPEATS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--depth", type=int, default=8)
    args = parser.parse_args()
    rng = random.Random(0)
    rates = [rng.uniform(0.3, 0.95) for _ in range(args.requests)]
    batch = [Candidate(rate, args.depth) for rate in rates]
    offers = [_offer(rate, args.depth) for rate in rates]
    num_tokens = args.requests * (args.depth + 1)
    print(f"{args.requests} requests, depth up to {args.depth}")
    for name, cost in (("memory-bound", 1e-5), ("near the ridge", 2e-3), ("beyond it", 1e-2)):
        step_time, planner = StepTimeModel(), Planner()
        for n in range(args.requests, num_tokens, 7):
            step_time.observe(n, 0.03 + cost * n)
            planner.observe_step(n, 0.03 + cost * n)
        plan = plan_depths(batch, 0, step_time.predict)
        plan_us = _us(lambda model=step_time: plan_depths(batch, 0, model.predict))
        commit_us = _us(lambda p=planner: p.wanted_depths(offers, 0, 0.003))
        print(
            f"{name:>14}: {sum(plan.depths):3} draft tokens, plan_depths {plan_us:6.1f} us, "
            f"Planner.wanted_depths {commit_us:6.1f} us"
        )


def _offer(rate: float, depth: int) -> Offer:
    acceptance = request_acceptance()
    for _ in range(40):
        acceptance.observe(depth, round(rate * depth))
    return Offer(acceptance, "model", depth)


def _us(call: object) -> float:
    return min(timeit.repeat(call, number=REPEATS, repeat=20)) / REPEATS * 1e6


if __name__ == "__main__":
    main()
