"""A comparison in pieces: each starts a system, measures it under some conditions, and ends it."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from specray.cli.bench.results import Measurement, Results
from specray.errors import InvalidConfigError, SpecrayError


class Piece(Protocol):
    """What can be measured without another piece in between."""

    @property
    def system(self) -> str:
        """Who is measured."""

    @property
    def title(self) -> str:
        """What to say while it is."""

    @property
    def expected_s(self) -> float:
        """How long it takes, start and end included."""

    def is_done(self, results: Results) -> bool:
        """Whether its measurements are there."""

    def measure(self, tell: Callable[[str], None]) -> list[Measurement]:
        """Does it; raises SpecrayError if the system does not start or does not answer."""


class Named(Protocol):
    """What `--only` chooses from."""

    @property
    def name(self) -> str:
        """As the user gives it."""


N = TypeVar("N", bound=Named)


def choose(systems: Sequence[N], names: Sequence[str]) -> list[N]:
    """Those of these names, or all if none is named.

    Raises:
        InvalidConfigError: there is no system of a name.
    """
    known = {system.name: system for system in systems}
    for name in names:
        if name not in known:
            raise InvalidConfigError(f"--only {name}: no such system; there are {', '.join(known)}")
    return [known[name] for name in names] or list(systems)


def run_pieces(
    pieces: Iterable[Piece],
    results: Results,
    limit_s: float | None,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures what is missing; a system that fails a second time is left out from then on.

    Args:
        pieces: in order; made one by one, so that later ones may depend on earlier results.
        results: what is there already, and what takes the rest.
        limit_s: no piece is begun that is not expected to end within this time; None for no limit.
        tell: hears what is being measured, and of every failure.
        clock: seconds.

    Returns:
        How many pieces were not begun for lack of time. Pieces that depend on them don't count.
    """
    started_s = clock()

    def has_time_for(piece: Piece) -> bool:
        return limit_s is None or clock() - started_s + piece.expected_s <= limit_s

    num_left = 0
    failed: set[str] = set()  # once, and are to be tried again
    for piece in pieces:
        while piece.system not in results.failures and not piece.is_done(results):
            if num_left or not has_time_for(piece):
                num_left += 1
                break
            tell(f"{piece.title}, some {piece.expected_s:.0f} s")
            try:
                found = piece.measure(tell)
            except SpecrayError as error:
                tell(f"{piece.system} failed: {error}")
                if piece.system in failed:
                    results.fail(piece.system, str(error))
                failed.add(piece.system)
            else:
                results.add(found)
    return num_left
