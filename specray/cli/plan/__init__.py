"""`specray plan`: how many drafts, how deep, and when not at all, simulated before it is bought."""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from multiprocessing import get_context
from typing import Any

from specray.cli.output import complain, say
from specray.cli.plan import options
from specray.simulate.sizing import (
    Outcome,
    Scenario,
    Trial,
    advise,
    least_s,
    recorded_qps,
    run_trial,
    trials,
)

add_arguments = options.add_arguments


def run(args: argparse.Namespace) -> int:
    """Simulate all trials, and say what they speak for.

    Returns:
        0.

    Raises:
        InvalidConfigError: an option or the file is faulty; the message names the field.
    """
    options.check(args)
    loads = options.read_loads(args)
    with redirect_stdout(sys.stderr):  # vLLM logs to stdout from its import on
        from specray.cli.bench.report import collect_meta
        from specray.cli.plan import report
        from specray.cli.plan.scenario import make_scenario

        meta = collect_meta(sys.argv[1:])  # before the work, during which files may change
        scenario, facts = make_scenario(args)
    loaded_s = max(least_s(scenario, qps) for qps in _qps(loads, scenario))
    if args.seconds is not None and args.seconds < loaded_s:
        complain(
            f"--seconds {args.seconds:g}: below {loaded_s:.0f} hardly an answer ends in time "
            "at the highest load, so that systems that keep up are called full; leave it out, "
            "or give more"
        )
    max_depth = scenario.cluster.target.policy.max_depth
    depths = [depth for depth in loads.depths if depth <= max_depth]
    planned = list(trials(_qps(loads, scenario), loads.drafts, depths))
    outcomes = _run_all(scenario, planned, args.jobs)
    advice = advise(outcomes)
    if args.json:
        say(json.dumps(report.as_dict(meta, facts, outcomes, advice), indent=1))
    else:
        say(report.text(facts, outcomes, advice, args.tpot_ms))
    if args.plot is not None:
        from specray.cli.plan.plots import draw

        draw(args.plot, facts, outcomes)
        complain(f"plot written to {args.plot}")
    return 0


def _qps(loads: options.Loads, scenario: Scenario) -> tuple[float, ...]:
    """What was asked for; of a replay its own."""
    return (recorded_qps(scenario),) if scenario.replayed else loads.qps


def _run_all(scenario: Scenario, planned: list[Trial], jobs: int | None) -> list[Outcome]:
    """The outcomes in the order of the trials, however many processes there are."""
    jobs = jobs or len(os.sched_getaffinity(0))
    work: Any = partial(run_trial, scenario)
    if jobs == 1:
        return [_tell(work(trial), n, planned) for n, trial in enumerate(planned, 1)]
    with ProcessPoolExecutor(min(jobs, len(planned)), get_context("spawn")) as pool:
        return [_tell(o, n, planned) for n, o in enumerate(pool.map(work, planned), 1)]


def _tell(outcome: Outcome, done: int, planned: list[Trial]) -> Outcome:
    trial = outcome.trial
    depth = "" if trial.depth is None else f" {trial.depth}"
    complain(f"{done}/{len(planned)}  {trial.qps:g} QPS, {trial.system}{depth}")
    return outcome
