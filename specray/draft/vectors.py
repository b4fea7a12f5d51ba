"""Inner loops on whole registers, as functions for numba: what its own vectoriser does not find.

Each but `pointer` takes addresses of contiguous numbers, as `array.ctypes.data` says, and lengths
that fit them: nothing is checked.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from specray.registers import (
    F32,
    I8,
    I32,
    I64,
    at,
    float_total,
    float_totals,
    fused,
    load,
    spread,
    store,
    x86_features,
)

_FLOATS: Final = 16  # in a register, where a head has so many
_HAS_32: Final = bool((x86_features() or {}).get("avx512f"))  # registers, each of so many floats
_MOST_SUMS: Final = 12 if _HAS_32 else 3  # that are held while rows are added to them
_ROWS_AT_ONCE: Final = 4  # whose products are summed up together, in a third of the instructions


@intrinsic
def pointer(context: Any, address: Any) -> Any:
    """An address as the pointer that `numba.carray` takes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], I8.as_pointer())

    return types.voidptr(types.int64), generate


@cache
def row_products(dim: int, num_queries: int) -> Callable[..., None]:
    """Dot products of each of many rows with a few queries, [dim] float32 all of them.

    What is returned takes the addresses of the queries and of the rows, how many rows there are,
    what to scale the products by, where to write the first query's, and how many bytes behind
    those the next one's go.
    """
    vector, num_blocks = _blocks(dim)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        queries, rows, num_rows, scale, out, stride = args
        held = [
            [
                load(builder, at(builder, queries, q * num_blocks + b, vector), vector)
                for b in range(num_blocks)
            ]
            for q in range(num_queries)
        ]

        def products_of(query: list[Any], row: Any) -> Any:
            """A register whose sum is the product."""
            total = ir.Constant(vector, None)
            for b, block in enumerate(query):
                values = load(builder, at(builder, row, b, vector), vector)
                total = fused(builder, block, values, total)
            return total

        num_in_fours = I64(0)
        if vector.count >= _ROWS_AT_ONCE:
            num_in_fours = builder.and_(num_rows, I64(-_ROWS_AT_ONCE))
            fours = cgutils.for_range_slice(
                builder, I64(0), num_in_fours, I64(_ROWS_AT_ONCE), intp=I64
            )
            with fours as (first, _):
                start = builder.add(rows, builder.mul(first, I64(4 * dim)))
                four = [builder.add(start, I64(4 * dim * r)) for r in range(_ROWS_AT_ONCE)]
                target = builder.add(out, builder.shl(first, I64(2)))
                for q, query in enumerate(held):
                    totals = float_totals(builder, [products_of(query, row) for row in four])
                    scaled = builder.fmul(totals, spread(builder, scale, totals.type))
                    store(builder, scaled, builder.add(target, builder.mul(stride, I64(q))))
        with cgutils.for_range_slice(builder, num_in_fours, num_rows, I64(1), intp=I64) as (
            index,
            _,
        ):
            row = builder.add(rows, builder.mul(index, I64(4 * dim)))
            target = builder.add(out, builder.shl(index, I64(2)))
            for q, query in enumerate(held):
                product = builder.fmul(_total(builder, products_of(query, row)), scale)
                address = builder.add(target, builder.mul(stride, I64(q)))
                builder.store(product, builder.inttoptr(address, F32.as_pointer()))
        return context.get_dummy_value()

    @intrinsic
    def products(
        context: Any, queries: Any, rows: Any, num_rows: Any, scale: Any, out: Any, stride: Any
    ) -> Any:
        numbers = [types.int64] * 3 + [types.float32] + [types.int64] * 2
        return types.void(*numbers), generate

    made: Callable[..., None] = products
    return made


@cache
def weighted_sums(dim: int, num_sums: int) -> Callable[..., None]:
    """A few sums of many rows, [dim] float32, with weights of their own.

    What is returned takes the address of the first sum's weights, how many bytes behind them the
    next one's lie, the address of the rows, how many there are, and where the sums are; they lie
    one behind the other, and the products are added to them.
    """
    vector, num_blocks = _blocks(dim)
    num_at_once = max(1, _MOST_SUMS // num_sums)  # of a row, so that its weights are read once

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weights, stride, rows, num_rows, out = args
        for first in range(0, num_blocks, num_at_once):
            blocks = range(first, min(first + num_at_once, num_blocks))
            targets = [
                [at(builder, out, s * num_blocks + b, vector) for b in blocks]
                for s in range(num_sums)
            ]
            sums = [
                [cgutils.alloca_once_value(builder, load(builder, place, vector)) for place in row]
                for row in targets
            ]
            with cgutils.for_range(builder, num_rows, intp=I64) as loop:
                row = builder.add(rows, builder.mul(loop.index, I64(4 * dim)))
                values = [load(builder, at(builder, row, b, vector), vector) for b in blocks]
                weight = builder.add(weights, builder.shl(loop.index, I64(2)))
                for s, places in enumerate(sums):
                    address = builder.add(weight, builder.mul(stride, I64(s)))
                    number = builder.load(builder.inttoptr(address, F32.as_pointer()))
                    factor = spread(builder, number, vector)
                    for value, place in zip(values, places, strict=True):
                        total = fused(builder, factor, value, builder.load(place))
                        builder.store(total, place)
            for places, goals in zip(sums, targets, strict=True):
                for place, goal in zip(places, goals, strict=True):
                    store(builder, builder.load(place), goal)
        return context.get_dummy_value()

    @intrinsic
    def sums(context: Any, weights: Any, stride: Any, rows: Any, num_rows: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    made: Callable[..., None] = sums
    return made


def _total(builder: Any, vector: Any) -> Any:
    """The sum of a register, added up as those of four together are."""
    if vector.type.count < _ROWS_AT_ONCE:
        return float_total(builder, vector)
    return builder.extract_element(float_totals(builder, [vector] * _ROWS_AT_ONCE), I32(0))


def _blocks(dim: int) -> tuple[ir.VectorType, int]:
    """A register that divides a row, and how many make one."""
    width = _FLOATS
    while dim % width:
        width //= 2
    return ir.VectorType(F32, width), dim // width
