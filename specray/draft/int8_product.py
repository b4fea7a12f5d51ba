"""Products of int8 weights with rows of floats, compiled by numba at their first use.

At a few rows a product should wait for memory alone. That takes integers: they need no conversion
to floats on the way, and processors multiply and add up pairs of 16-bit numbers in one instruction
(`vpmaddwd`; `vpdpwssd` with VNNI). Eight bits would be too coarse for a row's inputs, where a few
are far larger than all others; with 16 their rounding is far below that of the weights.
"""

from collections.abc import Callable
from typing import Final

import numba
import numpy as np
import torch
from numba import float32, int16, prange

from specray.draft.kernels import OPTIONS, Array
from specray.draft.vectors import dot_products

_BLOCK: Final = 16  # pairs of outputs whose weights stay in the cache while all rows pass
LARGEST_WEIGHT: Final = 127
_LARGEST_INPUT: Final = float32(2**15 - 2)
_LARGEST_SUM: Final = 0.999 * 2**31  # leaves room for what float32 loses in sums
_TINY: Final = 1e-30  # keeps a row of zeros from dividing by zero
Product = Callable[[Array, Array, Array, Array, Array], None]


def product() -> Product:
    """The product on as many threads as PyTorch has; to be called from Python or by numba.

    It computes out = x @ weight.T * scales + bias of

        x: [rows, in] float32.
        weight: [out, in padded by zeros to a multiple of `LANES`] int8.
        scales: [out] float32.
        bias: [out] float32.
        out: [rows, out] float32, overwritten.
    """
    num_threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if num_threads == 1:
        return _on_one_thread
    numba.set_num_threads(num_threads)
    return _on_all_threads


@numba.njit(**OPTIONS)
def _round(x: Array, rows: Array, row_scales: Array) -> None:
    """Rounds each row to integers so small that no sum of their products leaves 32 bits.

    A row that holds what is not a number has no scale either.
    """
    largest_sum = float32(_LARGEST_SUM / LARGEST_WEIGHT - rows.shape[1])  # each rounded by a half
    for r in range(len(x)):
        largest, total = float32(_TINY), float32(_TINY)
        for i in range(x.shape[1]):
            largest = max(largest, abs(x[r, i]))
            total += abs(x[r, i])
        scale = min(_LARGEST_INPUT / largest, largest_sum / total)
        row_scales[r] = float32(1) / scale if total == total else float32(np.nan)
        for i in range(x.shape[1]):
            value = x[r, i] * scale
            rows[r, i] = int16(value + (float32(0.5) if value >= 0 else float32(-0.5)))


_of_one, _of_two, _of_four = (dot_products(num_rows) for num_rows in (1, 2, 4))


def _multiply(x: Array, weight: Array, scales: Array, bias: Array, out: Array) -> None:
    """Tiles of four rows, then two, then one, by two outputs: what is loaded is used repeatedly.

    The outputs lie half the matrix apart: two streams from memory, each in its order. Of an odd
    number one is computed twice.
    """
    num_rows, length = len(x), weight.shape[1]
    rows = np.zeros((num_rows, length), np.int16)
    row_scales = np.empty(num_rows, np.float32)
    _round(x, rows, row_scales)
    half, apart, stride = (len(weight) + 1) // 2, len(weight) // 2, 2 * length
    for block in prange((half + _BLOCK - 1) // _BLOCK):
        outputs = range(block * _BLOCK, min((block + 1) * _BLOCK, half))
        for r in range(0, num_rows - 3, 4):
            row = rows.ctypes.data + r * stride
            p, q, s, t = row_scales[r], row_scales[r + 1], row_scales[r + 2], row_scales[r + 3]
            for o in outputs:
                first, n = weight.ctypes.data + o * length, o + apart
                a, e, b, f, c, g, d, h = _of_four(
                    first, first + apart * length, row, stride, length
                )
                out[r, o], out[r, n] = _scaled(a, e, o, n, p, scales, bias)
                out[r + 1, o], out[r + 1, n] = _scaled(b, f, o, n, q, scales, bias)
                out[r + 2, o], out[r + 2, n] = _scaled(c, g, o, n, s, scales, bias)
                out[r + 3, o], out[r + 3, n] = _scaled(d, h, o, n, t, scales, bias)
        r = num_rows - num_rows % 4
        if num_rows % 4 >= 2:
            row, p, q = rows.ctypes.data + r * stride, row_scales[r], row_scales[r + 1]
            for o in outputs:
                first, n = weight.ctypes.data + o * length, o + apart
                a, e, b, f = _of_two(first, first + apart * length, row, stride, length)
                out[r, o], out[r, n] = _scaled(a, e, o, n, p, scales, bias)
                out[r + 1, o], out[r + 1, n] = _scaled(b, f, o, n, q, scales, bias)
            r += 2
        if r < num_rows:
            row, p = rows.ctypes.data + r * stride, row_scales[r]
            for o in outputs:
                first, n = weight.ctypes.data + o * length, o + apart
                a, e = _of_one(first, first + apart * length, row, stride, length)
                out[r, o], out[r, n] = _scaled(a, e, o, n, p, scales, bias)


@numba.njit(**OPTIONS)
def _scaled(
    a: int, b: int, first: int, second: int, scale: float, scales: Array, bias: Array
) -> tuple[float, float]:
    """Two outputs of a row from their integers."""
    return (
        a * (scales[first] * scale) + bias[first],
        b * (scales[second] * scale) + bias[second],
    )


_on_one_thread = numba.njit(**OPTIONS)(_multiply)
_on_all_threads = numba.njit(parallel=True, **OPTIONS)(_multiply)
