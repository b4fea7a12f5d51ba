"""Products of int8 weights by the instruction that multiplies 16-bit numbers, for any processor.

It multiplies pairs of them and adds up each pair (`vpmaddwd`). A pair of inputs is spread over a
register and multiplied with the pair's weights of as many outputs, so that no register has to be
summed up at the end.
"""

from functools import cache, reduce
from typing import Any, Final, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils

from specray.draft.int8_group import Group, Multiply, Outputs, compiled
from specray.draft.kernels import OPTIONS, Array
from specray.registers import I8, I16, I32, I64, call, load, prefetch, spread, x86_features, zeros


class _Multiplier(NamedTuple):
    num_lanes: int  # that it takes
    name: str | None  # LLVM's; None where it has to find one


_ON_ANY_X86: Final = _Multiplier(8, "llvm.x86.sse2.pmadd.wd")
_ELSEWHERE: Final = _Multiplier(16, None)


def _find_multiplier() -> _Multiplier:
    features = x86_features()
    if features is None:
        return _ELSEWHERE
    if features.get("avx512bw"):
        return _Multiplier(32, "llvm.x86.avx512.pmaddw.d.512")
    if features.get("avx2"):
        return _Multiplier(16, "llvm.x86.avx2.pmadd.wd")
    return _ON_ANY_X86


_MULTIPLIER: Final = _find_multiplier()
_LANES: Final = _MULTIPLIER.num_lanes
MOST_ROWS: Final = 6  # 12 sums, two registers of weights, one of inputs; AVX2 has 16
OUTPUTS: Final = _LANES
INPUTS: Final = 8
"""What the number of inputs is padded to a multiple of."""
_PAIRS_AT_ONCE: Final = {1: 4, 2: 2, 3: 2}  # by rows, else 1: a processor works on 8 sums at once
_FETCHED_AHEAD: Final = 8192  # bytes


def pack(weight: Array) -> Array:
    """[groups * OUTPUTS, inputs] int8 → [groups, inputs / 2, OUTPUTS, 2]."""
    groups = weight.reshape(-1, OUTPUTS, weight.shape[1] // 2, 2)
    return np.ascontiguousarray(groups.transpose(0, 2, 1, 3))


@numba.njit(**OPTIONS)
def arrange(rows: Array, sums: Array) -> None:
    """Rows are taken as they are, and their sums not at all."""


@cache
def group_products() -> Multiply:
    """For 1 to `MOST_ROWS` rows."""

    def generate(builder: Any, num_rows: Any, group: Group) -> None:
        end = builder.append_basic_block("end")
        choice = builder.switch(num_rows, end)
        for number in range(1, MOST_ROWS + 1):
            block = builder.append_basic_block(f"rows.{number}")
            choice.add_case(I64(number), block)
            builder.position_at_end(block)
            sums, outputs = _sum_up(builder, number, group), Outputs(builder, group, _LANES // 2)
            for row in range(number):
                outputs.write(I64(row), sums[2 * row : 2 * row + 2])
            builder.branch(end)
        builder.position_at_end(end)

    return compiled(generate)


def _sum_up(builder: Any, num_rows: int, group: Group) -> list[Any]:
    """Each row's sums of products, in two registers.

    The weights that come next are fetched meanwhile: where several rows are computed the processor
    does not by itself.
    """
    wide, sum_type = ir.VectorType(I16, _LANES), ir.VectorType(I32, _LANES // 2)
    # A sum waits for the one before: few rows take several pairs at once, each with its own sums.
    num_at_once = _PAIRS_AT_ONCE.get(num_rows, 1)
    places = [zeros(builder, sum_type, 2 * num_rows) for _ in range(num_at_once)]
    num_pairs = builder.lshr(group.num_inputs, I64(1))
    pairs_at_once = cgutils.for_range_slice(builder, I64(0), num_pairs, I64(num_at_once), intp=I64)
    with pairs_at_once as (first, _):
        for index, sums in enumerate(places):
            pair = builder.add(first, I64(index))
            address = builder.add(group.weights, builder.mul(pair, I64(2 * OUTPUTS)))
            prefetch(builder, builder.add(address, I64(_FETCHED_AHEAD)))
            weights = [
                builder.sext(load(builder, builder.add(address, I64(start)), _bytes(_LANES)), wide)
                for start in (0, _LANES)
            ]
            start = builder.add(group.row, builder.mul(pair, I64(4)))
            for r in range(num_rows):
                source = builder.add(start, builder.mul(group.row_stride, I64(r)))
                inputs = builder.load(builder.inttoptr(source, I32.as_pointer()))
                pairs = builder.bitcast(spread(builder, inputs, sum_type), wide)
                for place, half in zip(sums[2 * r : 2 * r + 2], weights, strict=True):
                    product = _products_of_pairs(builder, half, pairs)
                    builder.store(builder.add(builder.load(place), product), place)
    return [
        reduce(builder.add, [builder.load(place) for place in alike])
        for alike in zip(*places, strict=True)
    ]


def _bytes(number: int) -> ir.VectorType:
    return ir.VectorType(I8, number)


def _products_of_pairs(builder: Any, a: Any, b: Any) -> Any:
    """[lanes] int16 each → [lanes / 2] int32: a[0] * b[0] + a[1] * b[1], ..."""
    sums = ir.VectorType(I32, _LANES // 2)
    if _MULTIPLIER.name is not None:
        return call(builder, _MULTIPLIER.name, sums, [a, b])
    products = []
    for first in (0, 1):
        every_other = ir.VectorType(I32, _LANES // 2)(list(range(first, _LANES, 2)))
        halves = [
            builder.sext(builder.shuffle_vector(v, v.type(ir.Undefined), every_other), sums)
            for v in (a, b)
        ]
        products.append(builder.mul(*halves))
    return builder.add(*products)
