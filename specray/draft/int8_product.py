"""Products of int8 weights with rows of floats, compiled by numba at their first use.

At a few rows a product should wait for memory alone. That takes integers: they need no conversion
to floats on the way, and processors multiply and add up several of them in one instruction. Eight
bits would be too coarse for a row's inputs, where a few are far larger than all others; with 16
their rounding is far below that of the weights. Sums are exact, whatever instruction is there, and
results the same to the last bit where multiplying and adding is one (FMA).
"""

from collections.abc import Callable
from functools import cache
from typing import Final

import numba
import numpy as np
import torch
from numba import float32, float64, int16, int32, int64, prange

from specray.draft import int8_pairs, int8_quads
from specray.draft.kernels import OPTIONS, Array

_INSTRUCTION: Final = int8_quads if int8_quads.are_there() else int8_pairs
OUTPUTS: Final = _INSTRUCTION.OUTPUTS
"""In a group."""
INPUTS: Final = _INSTRUCTION.INPUTS
"""What the number of inputs is padded to a multiple of."""
pack = _INSTRUCTION.pack
"""Puts weights, padded, in the order of `product`."""
_arrange = _INSTRUCTION.arrange
MOST_ROWS: Final = _INSTRUCTION.MOST_ROWS
"""That are multiplied at once."""
LARGEST_WEIGHT: Final = 127
_LARGEST_INPUT: Final = float32(2**15 - 130)  # `int8_digits`: 127 * 256 + 127, and room
_LARGEST_SUM: Final = 0.999 * 2**31  # leaves room for what float32 loses in sums
_LINE: Final = 64  # bytes
_TINY: Final = 1e-30  # keeps a row of zeros from dividing by zero
Product = Callable[[Array, Array, Array, Array, Array], None]


def product() -> Product:
    """The product on as many threads as PyTorch has; to be called from Python or by numba.

    It computes out = x @ weight.T * scales + bias of

        x: [rows, in] float32.
        weight: [groups of outputs, pairs of inputs, OUTPUTS, 2] int8, as `pack` makes them.
        scales: [out] float32.
        bias: [out] float32.
        out: [rows, out] float32, overwritten.

    All have to be contiguous.
    """
    num_threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if num_threads > 1:
        numba.set_num_threads(num_threads)
    return _compiled(num_threads > 1)


@numba.njit(**OPTIONS)
def _round(x: Array, rows: Array, row_scales: Array) -> None:
    """Rounds each row to integers so small that no sum of their products leaves 32 bits.

    A row that holds what is not a finite number has no scale either.
    """
    largest_sum = float32(_LARGEST_SUM / LARGEST_WEIGHT - x.shape[1])  # each rounded by a half
    bits, found = x.view(np.int32), np.empty(1, np.int32)
    for r in range(len(x)):
        row, row_bits, out = x[r], bits[r], rows[r]
        most, sum_of_row = int32(0), float64(_TINY)  # whose order of adding up does not show
        for i in range(len(row)):  # as integers, whose maximum registers have
            most = max(most, row_bits[i] & int32(0x7FFFFFFF))
        for i in range(len(row)):
            sum_of_row += float64(abs(row[i]))
        total = float32(sum_of_row)
        found[0] = most
        largest = max(float32(_TINY), found.view(np.float32)[0])
        scale = min(_LARGEST_INPUT / largest, largest_sum / total)
        row_scales[r] = float32(1) / scale if total < float32(np.inf) else float32(np.nan)
        for i in range(len(row)):
            value = row[i] * scale
            out[i] = int16(int32(value + (float32(0.5) if value >= 0 else float32(-0.5))))


@cache
def _compiled(is_parallel: bool) -> Product:
    multiply_group = _INSTRUCTION.group_products()

    def multiply(x: Array, weight: Array, scales: Array, bias: Array, out: Array) -> None:
        """Tiles of a few rows by one group of outputs: what is loaded is used repeatedly."""
        num_rows, num_groups, num_inputs = len(x), len(weight), 2 * weight.shape[1]
        room = np.zeros(num_rows * num_inputs + _LINE // 2, np.int16)
        first = -int64(room.ctypes.data) % _LINE // 2  # rows of tiles begin with lines of memory
        rows = room[first : first + num_rows * num_inputs].reshape(num_rows, num_inputs)
        row_scales, row_sums = np.empty(num_rows, np.float32), np.empty(num_rows, np.int32)
        _round(x, rows, row_scales)
        _arrange(rows, row_sums)
        num_last = len(scales) % OUTPUTS  # of the last group, if that is not full: it has a copy
        last = np.zeros((2 + num_rows, OUTPUTS), np.float32)  # of scales, bias, outputs
        for i in range(num_last):
            last[0, i], last[1, i] = scales[i - num_last], bias[i - num_last]
        for index in prange(num_groups):
            group = int64(index)  # numba adds an unsigned and a signed one up as floats
            if num_last and group == num_groups - 1:
                group_scales, stride = int64(last.ctypes.data), 4 * OUTPUTS
                group_bias, outputs = group_scales + stride, group_scales + 2 * stride
            else:
                offset, stride = 4 * OUTPUTS * group, 4 * len(scales)
                group_scales = int64(scales.ctypes.data) + offset
                group_bias, outputs = (
                    int64(bias.ctypes.data) + offset,
                    int64(out.ctypes.data) + offset,
                )
            for r in range(0, num_rows, MOST_ROWS):
                multiply_group(
                    min(MOST_ROWS, num_rows - r),
                    int64(weight.ctypes.data) + group * OUTPUTS * num_inputs,
                    num_inputs,
                    group_scales,
                    group_bias,
                    int64(rows.ctypes.data) + 2 * num_inputs * r,
                    2 * num_inputs,
                    int64(row_scales.ctypes.data) + 4 * r,
                    int64(row_sums.ctypes.data) + 4 * r,
                    outputs + stride * r,
                    stride,
                )
        for r in range(num_rows):
            for i in range(num_last):
                out[r, len(scales) - num_last + i] = last[2 + r, i]

    compiled: Product = numba.njit(parallel=is_parallel, **OPTIONS)(multiply)
    return compiled
