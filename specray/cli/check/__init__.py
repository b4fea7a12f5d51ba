"""`specray check FILE`: explains a config file without starting anything."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

from specray.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `specray check`."""
    parser.add_argument("config", type=Path, help="a Serve config file, as for `serve run`")
    parser.add_argument(
        "--from",
        dest="served",
        type=Path,
        metavar="FILE",
        help="what is served now: say what would change live, in place, or by replacing replicas",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Explain a file.

    Returns:
        0, with or without warnings.

    Raises:
        InvalidConfigError: the file could not be served, or what is served now can't be read.
    """
    with redirect_stdout(sys.stderr):  # vLLM logs to stdout from its import on
        from specray.cli.check.report import change_lines, text
        from specray.serve.changes import compare_files
        from specray.serve.check import check_file

        report = check_file(args.config)
        changes = compare_files(args.served, args.config) if args.served else None
    if args.json:
        compared = {} if changes is None else {"changes": changes._asdict()}
        say(json.dumps(asdict(report) | compared, indent=2))
        return 0
    say(text(args.config, report))
    if changes is not None:
        say("\n".join(change_lines(args.served, changes)))
    return 0
