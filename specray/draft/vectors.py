"""Inner loops on whole registers, as functions for numba: what its own vectoriser does not find.

Each takes addresses of contiguous numbers, as `array.ctypes.data` says, and lengths that fit them:
nothing is checked.
"""

from collections.abc import Callable
from functools import cache, reduce
from typing import Any, Final, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from specray.registers import (
    F32,
    I8,
    I16,
    I32,
    I64,
    at,
    call,
    float_total,
    fused,
    load,
    prefetch,
    spread,
    store,
    x86_features,
    zeros,
)

_FLOATS: Final = 16  # in a register, where a head has so many


class _Multiplier(NamedTuple):
    """The instruction that multiplies 16-bit numbers and adds up pairs of products."""

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
OUTPUTS: Final = _LANES
"""In a group of `group_products`: two registers of sums."""
PAIRS: Final = 4
"""What the number of pairs of inputs of `group_products` must be a multiple of."""
_PAIRS_AT_ONCE: Final = {1: 4, 2: 2, 3: 2}  # by rows, else 1: a processor works on 8 sums at once
_FETCHED_AHEAD: Final = 8192  # bytes


class _Group(NamedTuple):
    """What `group_products` takes beside the number of rows."""

    weights: Any  # address of [pairs, OUTPUTS, 2] int8
    num_pairs: Any  # of inputs, a multiple of `PAIRS`
    scales: Any  # address of [OUTPUTS] float32
    bias: Any  # address of [OUTPUTS] float32
    row: Any  # address of the first row: [pairs, 2] int16
    row_stride: Any  # how many bytes the rows lie apart
    row_scales: Any  # address of [rows] float32
    out: Any  # address of the first row's outputs: [OUTPUTS] float32
    out_stride: Any  # how many bytes the rows' outputs lie apart


@cache
def group_products(most_rows: int) -> Callable[..., None]:
    """Products of 1 to `most_rows` rows of integers with the int8 weights of a group of outputs.

    What is returned takes how many rows there are and a `_Group`'s fields, all of them int64. It
    multiplies the sums by their output's and their row's scale and adds the bias.

    A pair of inputs is spread over a register and multiplied with the pair's weights of as many
    outputs, so that no register has to be summed up at the end. The weights that come next are
    fetched meanwhile: where several rows are computed the processor does not by itself.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        end = builder.append_basic_block("end")
        choice = builder.switch(args[0], end)
        for num_rows in range(1, most_rows + 1):
            block = builder.append_basic_block(f"rows.{num_rows}")
            choice.add_case(I64(num_rows), block)
            builder.position_at_end(block)
            _multiply_group(builder, num_rows, _Group(*args[1:]))
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    @intrinsic
    def products(
        context: Any,
        num_rows: Any,
        weights: Any,
        num_pairs: Any,
        scales: Any,
        bias: Any,
        row: Any,
        row_stride: Any,
        row_scales: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        return types.void(*[types.int64] * 10), generate

    made: Callable[..., None] = products
    return made


def _multiply_group(builder: Any, num_rows: int, group: _Group) -> None:
    sums = _sum_group(builder, num_rows, group)
    numbers = ir.VectorType(F32, _LANES // 2)
    halves = [
        (
            load(builder, at(builder, group.scales, half, numbers), numbers),
            load(builder, at(builder, group.bias, half, numbers), numbers),
        )
        for half in (0, 1)
    ]
    for r in range(num_rows):
        source = builder.add(group.row_scales, I64(4 * r))
        row_scale = spread(
            builder, builder.load(builder.inttoptr(source, F32.as_pointer())), numbers
        )
        out = builder.add(group.out, builder.mul(group.out_stride, I64(r)))
        for half, (scales, bias) in enumerate(halves):
            factors = builder.fmul(scales, row_scale)
            outputs = fused(builder, builder.sitofp(sums[2 * r + half], numbers), factors, bias)
            store(builder, outputs, at(builder, out, half, numbers))


def _sum_group(builder: Any, num_rows: int, group: _Group) -> list[Any]:
    """Each row's sums of products, in two registers."""
    wide, sum_type = ir.VectorType(I16, _LANES), ir.VectorType(I32, _LANES // 2)
    # A sum waits for the one before: few rows take several pairs at once, each with its own sums.
    num_at_once = _PAIRS_AT_ONCE.get(num_rows, 1)
    places = [zeros(builder, sum_type, 2 * num_rows) for _ in range(num_at_once)]
    pairs_at_once = cgutils.for_range_slice(
        builder, I64(0), group.num_pairs, I64(num_at_once), intp=I64
    )
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
        with cgutils.for_range(builder, num_rows, intp=I64) as loop:
            row = builder.add(rows, builder.mul(loop.index, I64(4 * dim)))
            blocks = [load(builder, at(builder, row, b, vector), vector) for b in range(num_blocks)]
            target = builder.add(out, builder.shl(loop.index, I64(2)))
            for q, query in enumerate(held):
                total = ir.Constant(vector, None)
                for a, b in zip(query, blocks, strict=True):
                    total = fused(builder, a, b, total)
                product = builder.fmul(float_total(builder, total), scale)
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

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weights, stride, rows, num_rows, out = args
        for b in range(num_blocks):
            targets = [at(builder, out, s * num_blocks + b, vector) for s in range(num_sums)]
            sums = [
                cgutils.alloca_once_value(builder, load(builder, target, vector))
                for target in targets
            ]
            with cgutils.for_range(builder, num_rows, intp=I64) as loop:
                row = builder.add(rows, builder.mul(loop.index, I64(4 * dim)))
                values = load(builder, at(builder, row, b, vector), vector)
                weight = builder.add(weights, builder.shl(loop.index, I64(2)))
                for s, place in enumerate(sums):
                    address = builder.add(weight, builder.mul(stride, I64(s)))
                    number = builder.load(builder.inttoptr(address, F32.as_pointer()))
                    total = fused(
                        builder, spread(builder, number, vector), values, builder.load(place)
                    )
                    builder.store(total, place)
            for target, place in zip(targets, sums, strict=True):
                store(builder, builder.load(place), target)
        return context.get_dummy_value()

    @intrinsic
    def sums(context: Any, weights: Any, stride: Any, rows: Any, num_rows: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    made: Callable[..., None] = sums
    return made


def _blocks(dim: int) -> tuple[ir.VectorType, int]:
    """A register that divides a row, and how many make one."""
    width = _FLOATS
    while dim % width:
        width //= 2
    return ir.VectorType(F32, width), dim // width


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
