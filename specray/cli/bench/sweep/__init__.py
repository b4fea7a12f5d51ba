"""`specray bench --sweep`: from a quiet service to an overloaded one, by all depth policies.

An open loop: requests come when they come, whether or not the service keeps up. All systems get
the same requests at the same times; those of one load follow each other, so that a change of the
machine meets all of them.
"""

import argparse
import asyncio
import signal
import sys

import httpx

from specray.cli import INTERRUPTED
from specray.cli.bench.client import Endpoint
from specray.cli.bench.report import collect_meta
from specray.cli.bench.sweep.plan import SweepPlan, make_sweep, narrowed
from specray.cli.bench.sweep.plots import draw
from specray.cli.bench.sweep.report import format_sweep, write_sweep
from specray.cli.bench.sweep.runner import Cell, finished, sweep
from specray.cli.bench.sweep.service import LiveService, run_live_service
from specray.cli.output import complain, say
from specray.cli.plot import check_format, require_matplotlib
from specray.errors import InvalidConfigError

_METRICS_TIMEOUT_S = 5.0


def run_sweep(args: argparse.Namespace, config: str) -> int:
    """Measures, prints tables, and writes the result and its figure.

    A sweep that is interrupted reports the loads that every system has met.

    Args:
        args: the command's options.
        config: the file of the service to start.

    Returns:
        0, or 130 after an interruption.

    Raises:
        InvalidConfigError: an option is faulty, or does not go with a sweep.
        StartupError: if the service does not come up or stops answering.
    """
    _check(args)
    meta = collect_meta(sys.argv[1:])
    plan = narrowed(make_sweep(is_quick=args.quick, num_rounds=args.rounds), args.load, args.only)
    cells: list[Cell] = []
    code = 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    say(f"starting {config} ...")
    try:
        with run_live_service(config) as service:
            asyncio.run(_measure(service, plan, cells))
    except KeyboardInterrupt:
        code = INTERRUPTED
        complain(f"interrupted after {len(cells)} of {len(list(plan.cells()))} measurements")
    _report(args, meta, *finished(plan, cells))
    return code


def _check(args: argparse.Namespace) -> None:
    if args.url is not None:
        raise InvalidConfigError(
            "--sweep: changes the depth policy of the service it measures, so it has to start it: "
            "give --config instead of --url"
        )
    if args.minutes is not None or args.plots is not None:
        raise InvalidConfigError("--minutes and --plots are for --peers and --network")
    if args.plot is not None:
        check_format(args.plot)
        require_matplotlib()


async def _measure(service: LiveService, plan: SweepPlan, cells: list[Cell]) -> None:
    endpoint = Endpoint(service.url)
    try:
        async with httpx.AsyncClient(timeout=_METRICS_TIMEOUT_S) as metrics:
            async for cell in sweep(endpoint, metrics, service, plan):
                cells.append(cell)
                say(f"{len(cells)}/{len(list(plan.cells()))}  {cell.progress}")
    finally:
        await endpoint.close()


def _report(
    args: argparse.Namespace, meta: dict[str, str], plan: SweepPlan, cells: list[Cell]
) -> None:
    if not cells:
        return
    say(format_sweep(plan, cells))
    if args.json is not None:
        write_sweep(args.json, meta, plan, cells)
        say(f"written to {args.json}")
    if args.plot is not None:
        draw(args.plot, meta, plan, cells)
        say(f"drawn to {args.plot}")
