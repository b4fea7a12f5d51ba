"""`specray bench`: tokens per second of one target with speculation off and on, in turn.

A closed loop keeps so many answers in flight; see `load` for what is timed.
"""

import argparse
import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path

from specray.cli.bench.client import Endpoint
from specray.cli.bench.plan import make_plan
from specray.cli.bench.report import collect_meta, format_table, write_json
from specray.cli.bench.runner import measure
from specray.cli.bench.service import run_service
from specray.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what is measured and where the result goes."""
    parser.add_argument("--quick", action="store_true", help="greedy only, in five minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here as well")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="a running service, e.g. http://127.0.0.1:8000/v1")
    where.add_argument(
        "--config",
        default="deployments/local.yaml",
        help="start this one for the measurement (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Measures, prints a table, and writes the result.

    Raises:
        StartupError: if the service does not come up or stops answering.
    """
    meta = collect_meta(sys.argv[1:])
    plan = make_plan(is_quick=args.quick)
    if args.url is None:
        say(f"starting {args.config} ...")
    with run_service(args.config) if args.url is None else nullcontext(args.url) as url:
        rows = asyncio.run(measure(Endpoint(url), plan, say))
    say(format_table(rows))
    if args.json is not None:
        write_json(args.json, meta, plan, rows)
        say(f"written to {args.json}")
    return 0
