"""What the command line says; everything else logs."""

import sys
from collections.abc import Sequence


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


def columns(rows: Sequence[Sequence[str]], *, is_left: bool = False) -> str:
    """A table for people: columns as wide as they need.

    Args:
        rows: equally many cells each, the headings first.
        is_left: whether cells begin below each other, as words do, or end so, as numbers do.
    """
    align = str.ljust if is_left else str.rjust
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(align(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table for Markdown; the first row has the headings."""
    headings, *lines = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([headings, "|" + "---|" * len(rows[0]), *lines])
