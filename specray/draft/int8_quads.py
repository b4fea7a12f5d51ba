"""Products of int8 weights by AVX-512 VNNI, and where there are tiles by these.

VNNI multiplies a register's bytes and adds up four products each (`vpdpbusd`); AMX does so with 16
rows and 16 outputs at once (`tdpbsud`). Both take inputs by their digits: `int8_digits`.
"""

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any, Final

from numba.core import cgutils

from specray.draft import int8_tiles
from specray.draft.int8_digits import (
    INPUTS,
    LANES,
    LINE,
    OUTPUTS,
    SUMS,
    TILE,
    arrange,
    joined,
    pack,
)
from specray.draft.int8_group import Group, Multiply, Outputs, compiled
from specray.registers import I32, I64, call, load, prefetch, spread, x86_features, zeros

__all__ = ["INPUTS", "MOST_ROWS", "OUTPUTS", "are_there", "arrange", "group_products", "pack"]

_MOST_BY_REGISTERS: Final = 6  # rows: 24 sums, two registers of weights; there are 32
_FETCHED_AHEAD: Final = 12288  # bytes; with 2048 a Zen 5 waits for memory


def are_there() -> bool:
    """Whether numba compiles for a processor that has the instruction."""
    return bool((x86_features() or {}).get("avx512vnni"))


_HAS_TILES: Final = are_there() and int8_tiles.are_there()
MOST_ROWS: Final = int8_tiles.MOST_ROWS if _HAS_TILES else _MOST_BY_REGISTERS


@cache
def group_products() -> Multiply:
    """For 1 to `MOST_ROWS` rows: by tiles where registers would have to do it twice."""

    def generate(builder: Any, num_rows: Any, group: Group) -> None:
        end = builder.append_basic_block("end")
        choice = builder.switch(num_rows, end)
        for number in range(1, _MOST_BY_REGISTERS + 1):
            block = builder.append_basic_block(f"rows.{number}")
            choice.add_case(I64(number), block)
            builder.position_at_end(block)
            _multiply(builder, number, group)
            builder.branch(end)
        if _HAS_TILES:
            block = builder.append_basic_block("tiles")
            for number in range(_MOST_BY_REGISTERS + 1, MOST_ROWS + 1):
                choice.add_case(I64(number), block)
            builder.position_at_end(block)
            int8_tiles.multiply(builder, num_rows, group)
            builder.branch(end)
        builder.position_at_end(end)

    return compiled(generate)


def _multiply(builder: Any, num_rows: int, group: Group) -> None:
    # A sum waits for the one before: a single row takes two quads at once, with sums of their own.
    num_at_once = 2 if num_rows == 1 else 1
    places = [zeros(builder, SUMS, 4 * num_rows) for _ in range(num_at_once)]
    with cgutils.for_range(builder, builder.lshr(group.num_inputs, I64(6)), intp=I64) as block:
        tiles = builder.add(group.weights, builder.mul(block.index, I64(2 * TILE)))
        inputs = builder.add(group.row, builder.mul(block.index, I64(INPUTS)))
        quads = cgutils.for_range_slice(builder, I64(0), I64(16), I64(num_at_once), intp=I64)
        with quads as (first, _):
            for index, sums in enumerate(places):
                quad = builder.add(first, I64(index))
                weights = builder.add(tiles, builder.mul(quad, I64(LINE)))
                digits = builder.add(inputs, builder.mul(quad, I64(4)))
                _add_quad(builder, group, weights, digits, sums)
    totals = [
        reduce(builder.add, [builder.load(place) for place in alike])
        for alike in zip(*places, strict=True)
    ]
    outputs = Outputs(builder, group, LANES)
    for r in range(num_rows):
        of_row = totals[4 * r : 4 * r + 4]
        outputs.write(I64(r), joined(builder, group, I64(r), of_row[:2], of_row[2:]))


def _add_quad(builder: Any, group: Group, weights: Any, digits: Any, sums: Sequence[Any]) -> None:
    """Adds what four inputs make of each row's sums: two registers of either digit's.

    Args:
        builder: of the function.
        group: what it takes.
        weights: address of the four inputs' for the first 16 outputs.
        digits: address of the first row's high ones.
        sums: places of [rows, digits, halves] registers.
    """
    halves = []
    for half in (0, 1):
        source = builder.add(weights, I64(TILE * half))
        prefetch(builder, builder.add(source, I64(_FETCHED_AHEAD)))
        halves.append(load(builder, source, SUMS))
    for index, place in enumerate(sums):
        row, digit, half = index // 4, index // 2 % 2, index % 2
        source = builder.add(digits, builder.mul(group.row_stride, I64(row)))
        if digit:
            source = builder.add(source, group.num_inputs)
        four = builder.load(builder.inttoptr(source, I32.as_pointer()))
        factors = [builder.load(place), halves[half], spread(builder, four, SUMS)]
        builder.store(call(builder, "llvm.x86.avx512.vpdpbusd.512", SUMS, factors), place)
