"""Products of int8 weights by instructions that multiply bytes and add up four products each.

AVX-512 VNNI does so with a register (`vpdpbusd`), AMX with 16 rows and 16 outputs at once
(`tdpbsud`). A 16-bit input is two digits of a byte each, high * 256 + low, both with a sign: sums
of either's products make the input's. Weights have 128 added, as one factor must have no sign; that
adds 128 times the sum of a row's inputs to each of its sums. All of it wraps at 32 bits, which the
sum itself never leaves, so that it comes out exactly.

Source: Intel, Architecture Instruction Set Extensions Programming Reference, "Intel AMX".
"""

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any, Final

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import int8, int32
from numba.core import cgutils

from specray.draft.int8_group import Group, Outputs, Products, products
from specray.draft.kernels import OPTIONS, Array
from specray.registers import I8, I32, I64, call, load, prefetch, spread, store, x86_features, zeros

_LANES: Final = 16  # sums in a register, and rows and outputs of a tile
OUTPUTS: Final = 2 * _LANES
INPUTS: Final = 64
"""What the number of inputs is padded to a multiple of: a tile has so many."""
_OFFSET: Final = 128  # of weights
_LINE: Final = 64  # bytes of a tile's row, or a register
_TILE: Final = 16 * _LINE
_MOST_BY_REGISTERS: Final = 6  # rows: 24 sums, two registers of weights; there are 32
_FETCHED_AHEAD: Final = 2048  # bytes


def are_there() -> bool:
    """Whether numba compiles for a processor that has them."""
    return bool((x86_features() or {}).get("avx512vnni"))


def _are_tiles_there() -> bool:
    """Whether there are tiles, too, and Linux lets this process use them."""
    return bool((x86_features() or {}).get("amx-int8")) and torch.cpu._init_amx()


_HAS_TILES: Final = are_there() and _are_tiles_there()
MOST_ROWS: Final = 16 if _HAS_TILES else _MOST_BY_REGISTERS


def pack(weight: Array) -> Array:
    """[groups * OUTPUTS, inputs] int8 → [groups, inputs / 2, OUTPUTS, 2], in the order of tiles.

    A group has two tiles for each 64 inputs, of 16 outputs each: four inputs of them all, then the
    next four.
    """
    shape = (len(weight) // OUTPUTS, 2, _LANES, weight.shape[1] // INPUTS, 16, 4)
    tiles = (weight.view(np.uint8) + np.uint8(_OFFSET)).reshape(shape).transpose(0, 3, 1, 4, 2, 5)
    packed = np.ascontiguousarray(tiles).view(np.int8)
    return packed.reshape(len(packed), weight.shape[1] // 2, OUTPUTS, 2)


@numba.njit(**OPTIONS)
def arrange(rows: Array, sums: Array) -> None:
    """Puts each row's high digits, then its low ones, where its numbers are.

    Args:
        rows: [rows, inputs] int16, overwritten.
        sums: [rows] int32, overwritten by those of their numbers.
    """
    size, digits = rows.shape[1], rows.view(np.int8)
    row = np.empty(size, np.int16)
    for r in range(len(rows)):
        for i in range(size):
            row[i] = rows[r, i]
        total = int32(0)
        for i in range(size):
            value = int32(row[i])
            total += value
            digits[r, i] = int8((value + int32(128)) >> int32(8))
            digits[r, size + i] = int8(value)
        sums[r] = total


@cache
def group_products() -> Products:
    """For 1 to `MOST_ROWS` rows: by tiles where registers would have to do it twice."""

    def generate(builder: Any, num_rows: Any, group: Group) -> None:
        end = builder.append_basic_block("end")
        choice = builder.switch(num_rows, end)
        for number in range(1, _MOST_BY_REGISTERS + 1):
            block = builder.append_basic_block(f"rows.{number}")
            choice.add_case(I64(number), block)
            builder.position_at_end(block)
            _multiply_by_registers(builder, number, group)
            builder.branch(end)
        if _HAS_TILES:
            block = builder.append_basic_block("tiles")
            for number in range(_MOST_BY_REGISTERS + 1, MOST_ROWS + 1):
                choice.add_case(I64(number), block)
            builder.position_at_end(block)
            _multiply_by_tiles(builder, num_rows, group)
            builder.branch(end)
        builder.position_at_end(end)

    return products(generate)


_SUMS: Final = ir.VectorType(I32, _LANES)
_BYTES: Final = ir.VectorType(I8, _LINE)


def _multiply_by_registers(builder: Any, num_rows: int, group: Group) -> None:
    digits = [builder.add(group.row, offset) for offset in (I64(0), group.num_inputs)]
    # A sum waits for the one before.
    num_at_once = 2 if num_rows == 1 else 1
    places = [zeros(builder, _SUMS, 4 * num_rows) for _ in range(num_at_once)]
    with cgutils.for_range(builder, builder.lshr(group.num_inputs, I64(6)), intp=I64) as block:
        tiles = builder.add(group.weights, builder.mul(block.index, I64(2 * _TILE)))
        quads = cgutils.for_range_slice(builder, I64(0), I64(16), I64(num_at_once), intp=I64)
        with quads as (first, _):
            for index, sums in enumerate(places):
                quad = builder.add(first, I64(index))
                address = builder.add(tiles, builder.mul(quad, I64(_LINE)))
                weights = [builder.add(address, I64(start)) for start in (0, _TILE)]
                place = builder.add(
                    builder.mul(block.index, I64(INPUTS)), builder.mul(quad, I64(4))
                )
                for source in weights:
                    prefetch(builder, builder.add(source, I64(_FETCHED_AHEAD)))
                halves = [load(builder, source, _SUMS) for source in weights]
                for r in range(num_rows):
                    for d, digit in enumerate(digits):
                        source = builder.add(
                            builder.add(digit, place), builder.mul(group.row_stride, I64(r))
                        )
                        inputs = builder.load(builder.inttoptr(source, I32.as_pointer()))
                        spread_inputs = spread(builder, inputs, _SUMS)
                        for h, half in enumerate(halves):
                            target = sums[4 * r + 2 * d + h]
                            added = call(
                                builder,
                                "llvm.x86.avx512.vpdpbusd.512",
                                _SUMS,
                                [builder.load(target), half, spread_inputs],
                            )
                            builder.store(added, target)
    outputs = Outputs(builder, group, _LANES)
    totals = [
        reduce(builder.add, [builder.load(place) for place in alike])
        for alike in zip(*places, strict=True)
    ]
    for r in range(num_rows):
        of_row = totals[4 * r : 4 * r + 4]
        outputs.write(I64(r), _joined(builder, group, I64(r), of_row[:2], of_row[2:]))


def _multiply_by_tiles(builder: Any, num_rows: Any, group: Group) -> None:
    """Of the eight tiles four are sums, two of either digit; then come digits, then weights."""
    sums = cgutils.alloca_once(builder, ir.ArrayType(I8, 4 * _TILE))
    start = builder.ptrtoint(sums, I64)
    _configure(builder, num_rows)
    for tile in range(4):
        _run(builder, "tilezero", I8(tile))
    high, low = group.row, builder.add(group.row, group.num_inputs)
    with cgutils.for_range(builder, builder.lshr(group.num_inputs, I64(6)), intp=I64) as block:
        place = builder.mul(block.index, I64(INPUTS))
        weights = builder.add(group.weights, builder.mul(block.index, I64(2 * _TILE)))
        for tile, digits in ((4, high), (5, low)):
            _move(builder, "tileloadd64", tile, builder.add(digits, place), group.row_stride)
        for half in (0, 1):
            source = builder.add(weights, I64(_TILE * half))
            _move(builder, "tileloadd64", 6 + half, source, I64(_LINE))
            _run(builder, "tdpbsud", I8(half), I8(4), I8(6 + half))
            _run(builder, "tdpbsud", I8(2 + half), I8(5), I8(6 + half))
    for tile in range(4):
        _move(builder, "tilestored64", tile, builder.add(start, I64(_TILE * tile)), I64(_LINE))
    _run(builder, "tilerelease")
    outputs = Outputs(builder, group, _LANES)
    with cgutils.for_range(builder, num_rows, intp=I64) as loop:
        line = builder.add(start, builder.mul(loop.index, I64(_LINE)))
        of_row = [load(builder, builder.add(line, I64(_TILE * tile)), _SUMS) for tile in range(4)]
        joined = _joined(builder, group, loop.index, of_row[:2], of_row[2:])
        outputs.write(loop.index, joined)


def _joined(
    builder: Any, group: Group, row: Any, high: Sequence[Any], low: Sequence[Any]
) -> list[Any]:
    """A row's two registers of sums, of those of its digits."""
    source = builder.add(group.row_sums, builder.mul(row, I64(4)))
    total = builder.load(builder.inttoptr(source, I32.as_pointer()))
    excess = spread(builder, builder.mul(total, I32(_OFFSET)), _SUMS)
    eight = ir.Constant(_SUMS, [8] * _LANES)
    return [
        builder.sub(builder.add(builder.shl(a, eight), b), excess)
        for a, b in zip(high, low, strict=True)
    ]


def _configure(builder: Any, num_rows: Any) -> None:
    """Sums, and inputs: so many rows of 64 bytes; weights: 16 of them."""
    place = cgutils.alloca_once(builder, ir.ArrayType(I8, _LINE))
    start = builder.ptrtoint(place, I64)
    sizes = ir.Constant(
        _BYTES, [1] + [0] * 15 + [_LINE, 0] * 8 + [0] * 16 + [0] * 6 + [16] * 2 + [0] * 8
    )
    rows = builder.trunc(num_rows, I8)
    for tile in range(6):
        sizes = builder.insert_element(sizes, rows, I32(48 + tile))
    store(builder, sizes, start)
    _run(builder, "ldtilecfg", builder.inttoptr(start, I8.as_pointer()))


def _move(builder: Any, name: str, tile: int, address: Any, stride: Any) -> None:
    _run(builder, name, I8(tile), builder.inttoptr(address, I8.as_pointer()), stride)


def _run(builder: Any, name: str, *args: Any) -> None:
    call(builder, f"llvm.x86.{name}", ir.VoidType(), list(args))
