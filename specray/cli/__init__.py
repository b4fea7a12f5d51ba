"""The `specray` command: each subcommand is a module with `add_arguments` and `run`."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata

from specray.cli.output import UnreadError, complain
from specray.errors import SpecrayError

USER_ERROR = 2  # exit code, as argparse's own
INTERRUPTED = 130
BROKEN_PIPE = 141  # as of a process that SIGPIPE ended

COMMANDS = {  # module, and what it is for
    "check": ("specray.cli.check", "explain a config file without starting it"),
    "serve": ("specray.cli.serve", "serve a model with speculative decoding"),
    "bench": ("specray.cli.bench", "measure speculation on against off"),
    "plan": ("specray.cli.plan", "simulate a deployment: how many drafts, how deep, at what cost"),
    "pair": ("specray.cli.pair", "check a draft against a target, and say what it would bring"),
    "distill": ("specray.cli.distill", "make a draft for a model of your own"),
    "explain": ("specray.cli.explain", "show what a running service has decided, and why"),
    "trace": ("specray.cli.trace", "make one trace of what targets and drafts wrote down"),
    "models": ("specray.cli.models", "list or prepare the bundled models"),
    "version": ("specray.cli.version", "print the versions of specray and its engines"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; an error of the user's is one message, not a traceback.

    Args:
        argv: the words after `specray`; by default those of this process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        # Inside: a subcommand's module is imported when its parser is made.
        args = _make_parser(words[0] if words else None).parse_args(words)
        return int(args.run(args))
    except SpecrayError as error:
        complain(str(error))
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except UnreadError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left, at exit
        return BROKEN_PIPE


def help_of(name: str, width: int = 100) -> str:
    """What `specray NAME --help` prints on a terminal of so many columns."""
    module_name, summary = COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"specray {name}",
        description=summary.capitalize() + ".",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=width),
    )
    import_module(module_name).add_arguments(parser)
    return parser.format_help()


def _make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """A parser that knows the arguments of the chosen subcommand only: Ray loads slowly."""
    parser = argparse.ArgumentParser(
        prog="specray", description="Disaggregated speculative decoding on Ray Serve and vLLM."
    )
    parser.add_argument(
        "--version", action="version", version=f"specray {metadata.version('specray')}"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (module_name, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if name == chosen:
            module = import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
