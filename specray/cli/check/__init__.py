"""`specray check FILE`: explains a config file without starting anything."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from specray.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `specray check`."""
    parser.add_argument("config", type=Path, help="a Serve config file, as for `serve run`")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Explain a file.

    Returns:
        0, with or without warnings.

    Raises:
        InvalidConfigError: the file could not be served.
    """
    with redirect_stdout(sys.stderr):  # vLLM logs to stdout from its import on
        from specray.cli.check.report import text
        from specray.serve.check import check_file

        report = check_file(args.config)
    say(json.dumps(report.as_dict(), indent=2) if args.json else text(args.config, report))
    return 0
