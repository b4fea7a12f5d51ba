from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from specray.cli.bench.pieces import choose, run_pieces
from specray.cli.bench.plan import Cell
from specray.cli.bench.results import Condition, Measurement, Results, measured
from specray.errors import InvalidConfigError, StartupError

CONDITION = Condition(Cell("chat", 1, 0.0))


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakePiece:
    system: str
    round_number: int
    clock: Clock
    expected_s: float = 100.0
    error: Exception | None = None
    num_tries: int = 0
    num_failures: int = 1_000  # tries that fail, if there is an error

    @property
    def title(self) -> str:
        return f"{self.system} {self.round_number}"

    def is_done(self, results: Results) -> bool:
        return results.has(self.system, self.round_number, [CONDITION])

    def measure(self, tell: Callable[[str], None]) -> list[Measurement]:
        self.clock.now += self.expected_s
        self.num_tries += 1
        if self.error is not None and self.num_tries <= self.num_failures:
            raise self.error
        return [measured(self.system, self.round_number, CONDITION, 10.0)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def results() -> Results:
    return Results(None, "peers", {})


def ran(results: Results) -> list[tuple[str, int]]:
    return [(m.system, m.round_number) for m in results.measurements]


def test_what_is_done_is_not_done_again(clock: Clock, results: Results) -> None:
    pieces = [FakePiece("a", 1, clock), FakePiece("b", 1, clock)]
    results.add([measured("a", 1, CONDITION, 9.0)])

    assert run_pieces(pieces, results, None, lambda _: None, clock) == 0
    assert ran(results) == [("a", 1), ("b", 1)]


def test_nothing_begins_that_would_end_too_late(clock: Clock, results: Results) -> None:
    pieces = [FakePiece("a", number, clock) for number in (1, 2, 3)]
    pieces.append(FakePiece("a", 4, clock, expected_s=1.0))  # in order, or not at all

    assert run_pieces(pieces, results, 250.0, lambda _: None, clock) == 2
    assert ran(results) == [("a", 1), ("a", 2)]
    assert run_pieces(pieces, results, 250.0, lambda _: None, clock) == 0
    assert ran(results) == [("a", 1), ("a", 2), ("a", 3), ("a", 4)]


def test_a_system_that_fails_is_left_out_and_the_rest_goes_on(
    clock: Clock, results: Results
) -> None:
    lines: list[str] = []
    pieces = [
        FakePiece("a", 1, clock, error=StartupError("no such method\nTraceback ...")),
        FakePiece("b", 1, clock),
        FakePiece("a", 2, clock),
    ]

    run_pieces(pieces, results, None, lines.append, clock)

    assert ran(results) == [("b", 1)]
    assert results.failures == {"a": "no such method\nTraceback ..."}
    assert any(line.startswith("a failed: no such method") for line in lines)
    results.forgive("a")
    run_pieces(pieces[1:], results, None, lines.append, clock)
    assert ran(results) == [("b", 1), ("a", 2)]


def test_nothing_is_tried_again_that_would_end_too_late(clock: Clock, results: Results) -> None:
    piece = FakePiece("a", 1, clock, error=StartupError("a port was taken"))

    assert run_pieces([piece], results, 150.0, lambda _: None, clock) == 1
    assert piece.num_tries == 1
    assert results.failures == {}


def test_a_system_that_fails_once_is_tried_again(clock: Clock, results: Results) -> None:
    piece = FakePiece("a", 1, clock, error=StartupError("a port was taken"), num_failures=1)

    run_pieces([piece], results, None, lambda _: None, clock)

    assert ran(results) == [("a", 1)]
    assert results.failures == {}


def test_a_fault_of_ours_is_not_taken_for_the_systems(clock: Clock, results: Results) -> None:
    with pytest.raises(ZeroDivisionError):
        run_pieces(
            [FakePiece("a", 1, clock, error=ZeroDivisionError())], results, None, print, clock
        )


def test_later_pieces_may_depend_on_earlier_results(clock: Clock, results: Results) -> None:
    def pieces() -> Iterator[FakePiece]:
        yield FakePiece("a", 1, clock)
        if results.has("a", 1, [CONDITION]):
            yield FakePiece("b", 1, clock)

    run_pieces(pieces(), results, None, lambda _: None, clock)

    assert ran(results) == [("a", 1), ("b", 1)]


@dataclass
class Named:
    name: str


def test_systems_are_chosen_by_name() -> None:
    systems = [Named("vllm"), Named("hf")]

    assert choose(systems, ["hf", "vllm"]) == [Named("hf"), Named("vllm")]
    assert choose(systems, []) == systems
    with pytest.raises(InvalidConfigError, match=r"--only nope: .*vllm, hf"):
        choose(systems, ["nope"])
