"""`specray bench`: tokens per second of one target with speculation off and on, in turn.

A closed loop keeps so many answers in flight; see `load` for what is timed. `--peers` compares
with others' speculation, `--network` with what a longer network and a slower draft leave of ours.
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
from specray.cli.bench.sweep import run_sweep
from specray.cli.output import say
from specray.errors import InvalidConfigError

_DEFAULT = "deployments/local.yaml"
DEFAULT_WITH_MODEL = "deployments/local-hybrid.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what is measured and where the result goes."""
    parser.add_argument("--quick", action="store_true", help="fewer conditions and rounds")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the result here; comparisons resume it"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a sweep, e.g. sweep.svg")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--sweep",
        action="store_true",
        help="every depth policy under rising load; 5 or 100 minutes",
    )
    what.add_argument("--peers", action="store_true", help="compare with others' speculation")
    what.add_argument(
        "--network", action="store_true", help="compare under simulated round trips and slow drafts"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="a running service, e.g. http://127.0.0.1:8000/v1")
    where.add_argument(
        "--config",
        type=Path,
        help=f"start this one for the measurement (default: {_DEFAULT}; for comparisons, which "
        f"need a draft model, {DEFAULT_WITH_MODEL})",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="SYSTEM",
        help="of a comparison or a sweep, which adds off and ours; repeatable",
    )
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="NAME",
        help="of a sweep's, e.g. 8 or 'burst of 16'; repeatable",
    )
    parser.add_argument(
        "--minutes", type=float, help="begin nothing that ends later; the same command goes on"
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw --network's figures")
    parser.add_argument(
        "--temperature",
        action="append",
        type=_temperature,
        default=[],
        help="measure at this one (default: 0, without --quick also 1); repeatable",
    )
    parser.add_argument(
        "--rounds", type=_rounds, metavar="N", help="measure so often, instead of as often as usual"
    )


def run(args: argparse.Namespace) -> int:
    """Measures, prints a table, and writes the result.

    Raises:
        InvalidConfigError: the options or the config file don't fit.
        StartupError: if the service does not come up or stops answering.
    """
    config = str(args.config or _DEFAULT)
    if args.temperature and args.sweep:
        raise InvalidConfigError("--temperature: a sweep is greedy; leave it out")
    if args.sweep:
        return run_sweep(args, config)
    if args.plot is not None:
        raise InvalidConfigError("--plot: draws a sweep; add --sweep")
    if args.load:
        raise InvalidConfigError("--load: one of a sweep's; add --sweep")
    if args.peers or args.network:
        from specray.cli.bench import compare  # loads PyTorch, which takes seconds

        return compare.run(args)
    if args.only or args.minutes is not None or args.plots is not None:
        raise InvalidConfigError(
            "--only, --minutes and --plots are for --peers and --network; --only also for --sweep"
        )
    meta = collect_meta(sys.argv[1:])
    plan = make_plan(is_quick=args.quick, temperatures=args.temperature, num_rounds=args.rounds)
    if args.url is None:
        say(f"starting {config} ...")
    with run_service(config) if args.url is None else nullcontext(args.url) as url:
        rows = asyncio.run(measure(Endpoint(url), plan, say))
    say(format_table(rows))
    if args.json is not None:
        write_json(args.json, meta, plan, rows)
        say(f"written to {args.json}")
    return 0


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number, 1 or more")
    return int(text)


def _temperature(text: str) -> float:
    temperature = float(text)
    if not 0 <= temperature <= 2:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 and 2")
    return temperature
