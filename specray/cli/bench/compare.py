"""`specray bench --peers` and `--network`: what their options ask for, and what is said."""

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from specray.cli.bench import DEFAULT_WITH_MODEL, network, network_report, peers, peers_report
from specray.cli.bench.deployment import Deployment
from specray.cli.bench.pieces import Piece, choose, run_pieces
from specray.cli.bench.report import collect_meta
from specray.cli.bench.results import Results
from specray.cli.output import say
from specray.cli.plot import require_matplotlib
from specray.errors import InvalidConfigError


class _Measured(NamedTuple):
    results: Results  # those of earlier calls, too
    num_left: int  # pieces, at least


def run(args: argparse.Namespace) -> int:
    """Measures what the result file lacks, and prints a table of all that it has.

    Raises:
        InvalidConfigError: the options or the config file don't fit.
    """
    if args.url is not None:
        raise InvalidConfigError("--url: comparisons start their systems themselves; leave it out")
    if args.peers and args.plots is not None:
        raise InvalidConfigError("--plots: there are figures of --network only; leave it out")
    if args.plots is not None:
        require_matplotlib("--plots")
    return _compare_peers(args) if args.peers else _compare_networks(args)


def _compare_peers(args: argparse.Namespace) -> int:
    plan = peers.make_plan(**_plan_of(args))
    deployment = _deployment(args)
    systems = peers.make_systems(deployment, plan.depths)
    chosen = choose(systems, args.only)
    results, num_left = _measure(
        args, peers.KIND, deployment, lambda known: peers.make_pieces(chosen, plan, known)
    )
    results.conclude([asdict(figure) for figure in peers_report.summarise(systems, results)])
    say(peers_report.format_markdown(systems, results))
    _say_what_is_left(num_left)
    return 0


def _compare_networks(args: argparse.Namespace) -> int:
    plan = network.make_plan(**_plan_of(args))
    deployment = _deployment(args)
    systems = network.make_systems(deployment, plan)
    chosen = choose(systems, args.only)
    results, num_left = _measure(
        args, network.KIND, deployment, lambda known: network.make_pieces(chosen, plan, known)
    )
    results.conclude([asdict(line) for line in network_report.summarise(results)])
    say(network_report.format_markdown(results))
    if args.plots is not None:
        for path in network_report.draw(results, args.plots):
            say(f"drawn: {path}")
    _say_what_is_left(num_left)
    return 0


def _plan_of(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "is_quick": args.quick,
        "temperatures": args.temperature,
        "num_rounds": args.rounds,
    }


def _deployment(args: argparse.Namespace) -> Deployment:
    return Deployment(args.config or Path(DEFAULT_WITH_MODEL))


def _measure(
    args: argparse.Namespace,
    kind: str,
    deployment: Deployment,
    make_pieces: Callable[[Results], Iterable[Piece]],
) -> _Measured:
    kind = f"{kind}, quick" if args.quick else kind  # shorter looks: the two don't mix
    meta = collect_meta(sys.argv[1:]) | {"config": deployment.digest}
    results = Results(args.json, kind, meta)
    for name in args.only:
        results.forgive(name)
    limit_s = None if args.minutes is None else 60 * args.minutes
    return _Measured(results, run_pieces(make_pieces(results), results, limit_s, say))


def _say_what_is_left(num_left: int) -> None:
    if num_left:
        say(f"{num_left} pieces or more are left; the same command goes on with them")
