"""What the command line says; everything else logs."""

import sys


def say(text: str = "") -> None:
    """Writes a line for the user to stdout, at once also when it is a pipe."""
    print(text, flush=True)  # noqa: T201


def complain(text: str) -> None:
    """Writes a message about an error to stderr."""
    print(f"specray: {text}", file=sys.stderr, flush=True)  # noqa: T201
