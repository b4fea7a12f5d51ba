"""Rows of 16-bit inputs as two digits of a byte each, for instructions that multiply bytes.

An input is high * 256 + low, both with a sign: sums of either digit's products make the input's.
Weights have 128 added, as one factor must have no sign; that adds 128 times the sum of a row's
inputs to each of its sums. All of it wraps at 32 bits, which the sum itself never leaves, so that
it comes out exactly.
"""

from collections.abc import Sequence
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import int8, int32

from specray.draft.int8_group import Group
from specray.draft.kernels import OPTIONS, Array
from specray.registers import I32, I64, spread

LANES: Final = 16  # sums in a register, and rows and outputs of a tile
OUTPUTS: Final = 2 * LANES
INPUTS: Final = 64
"""What the number of inputs is padded to a multiple of: a tile has so many."""
LINE: Final = 64  # bytes of a tile's row, or a register
TILE: Final = 16 * LINE
SUMS: Final = ir.VectorType(I32, LANES)
_OFFSET: Final = 128  # of weights


def pack(weight: Array) -> Array:
    """[groups * OUTPUTS, inputs] int8 → [groups, inputs / 2, OUTPUTS, 2], in the order of tiles.

    A group has two tiles for each 64 inputs, of 16 outputs each: four inputs of them all, then the
    next four.
    """
    shape = (len(weight) // OUTPUTS, 2, LANES, weight.shape[1] // INPUTS, 16, 4)
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


def joined(
    builder: Any, group: Group, row: Any, high: Sequence[Any], low: Sequence[Any]
) -> list[Any]:
    """A row's two registers of sums, of those of its digits."""
    source = builder.add(group.row_sums, builder.mul(row, I64(4)))
    total = builder.load(builder.inttoptr(source, I32.as_pointer()))
    excess = spread(builder, builder.mul(total, I32(_OFFSET)), SUMS)
    eight = ir.Constant(SUMS, [8] * LANES)
    return [
        builder.sub(builder.add(builder.shl(a, eight), b), excess)
        for a, b in zip(high, low, strict=True)
    ]
