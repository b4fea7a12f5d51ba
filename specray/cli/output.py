"""What the command line says; everything else logs."""

import sys


class UnreadError(Exception):
    """Nobody reads what is said any more, as of `| head`."""


def say(text: str = "") -> None:
    """Writes a line for the user to stdout, at once also when it is a pipe.

    Raises:
        UnreadError: its reader has gone.
    """
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:
        raise UnreadError from None


def complain(text: str) -> None:
    """Writes a message about an error to stderr."""
    print(f"specray: {text}", file=sys.stderr, flush=True)  # noqa: T201
