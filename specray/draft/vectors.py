"""Inner loops on whole registers, as functions for numba: what its own vectoriser does not find.

Each takes addresses of contiguous numbers, as `array.ctypes.data` says, and lengths that fit them:
nothing is checked. Registers wider than the processor's are divided by LLVM.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOATS: Final = 16  # in a register, where a head has so many
_ANY_ORDER: Final = ("reassoc", "contract")


class _Multiplier(NamedTuple):
    """The instruction that multiplies 16-bit numbers and adds up pairs of products."""

    num_lanes: int  # that it takes
    name: str | None  # LLVM's; None where it has to find one


def _find_multiplier() -> _Multiplier:
    config = numba.config
    if config.CPU_NAME or config.CPU_FEATURES or not config.ENABLE_AVX:
        return _Multiplier(16, None)  # compiled for another processor than this one
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:  # LLVM can't tell here
        return _Multiplier(16, None)
    if features.get("avx512bw"):
        return _Multiplier(32, "llvm.x86.avx512.pmaddw.d.512")
    if features.get("avx2"):
        return _Multiplier(16, "llvm.x86.avx2.pmadd.wd")
    return _Multiplier(16, None)


_MULTIPLIER: Final = _find_multiplier()
LANES: Final = _MULTIPLIER.num_lanes
"""What a row that `dot_products` takes must be a multiple of."""


@cache
def dot_products(num_rows: int) -> Callable[..., tuple[int, ...]]:
    """Dot products of `num_rows` rows of int16 with two of int8.

    What is returned takes the addresses of the two and of the first row, how many bytes the rows
    lie apart, and their length. It returns both int32 products of the first row, then the next
    one's.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, second, row, stride, length = args
        sums = _zeros(builder, ir.VectorType(_I32, LANES // 2), 2 * num_rows)
        wide = ir.VectorType(_I16, LANES)
        with cgutils.for_range_slice(builder, _I64(0), length, _I64(LANES), intp=_I64) as (i, _):
            weights = [
                builder.sext(
                    _load(builder, builder.add(address, i), ir.VectorType(_I8, LANES)), wide
                )
                for address in (first, second)
            ]
            start = builder.add(row, builder.shl(i, _I64(1)))
            for r in range(num_rows):
                address = builder.add(start, builder.mul(stride, _I64(r)))
                inputs = _load(builder, address, wide)
                for place, weight in zip(sums[2 * r : 2 * r + 2], weights, strict=True):
                    product = _products_of_pairs(builder, weight, inputs)
                    builder.store(builder.add(builder.load(place), product), place)
        totals = [_total(builder, builder.load(place)) for place in sums]
        return context.make_tuple(builder, signature.return_type, totals)

    @intrinsic
    def products(context: Any, first: Any, second: Any, row: Any, stride: Any, length: Any) -> Any:
        returned = types.UniTuple(types.int32, 2 * num_rows)
        return returned(*[types.int64] * 5), generate

    made: Callable[..., tuple[int, ...]] = products
    return made


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
                _load(builder, _at(builder, queries, q * num_blocks + b, vector), vector)
                for b in range(num_blocks)
            ]
            for q in range(num_queries)
        ]
        with cgutils.for_range(builder, num_rows, intp=_I64) as loop:
            row = builder.add(rows, builder.mul(loop.index, _I64(4 * dim)))
            blocks = [
                _load(builder, _at(builder, row, b, vector), vector) for b in range(num_blocks)
            ]
            target = builder.add(out, builder.shl(loop.index, _I64(2)))
            for q, query in enumerate(held):
                total = ir.Constant(vector, None)
                for a, b in zip(query, blocks, strict=True):
                    total = _fused(builder, a, b, total)
                product = builder.fmul(_float_total(builder, total), scale)
                address = builder.add(target, builder.mul(stride, _I64(q)))
                builder.store(product, builder.inttoptr(address, _F32.as_pointer()))
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
            targets = [_at(builder, out, s * num_blocks + b, vector) for s in range(num_sums)]
            sums = [
                cgutils.alloca_once_value(builder, _load(builder, target, vector))
                for target in targets
            ]
            with cgutils.for_range(builder, num_rows, intp=_I64) as loop:
                row = builder.add(rows, builder.mul(loop.index, _I64(4 * dim)))
                values = _load(builder, _at(builder, row, b, vector), vector)
                weight = builder.add(weights, builder.shl(loop.index, _I64(2)))
                for s, place in enumerate(sums):
                    address = builder.add(weight, builder.mul(stride, _I64(s)))
                    number = builder.load(builder.inttoptr(address, _F32.as_pointer()))
                    total = _fused(
                        builder, _spread(builder, number, vector), values, builder.load(place)
                    )
                    builder.store(total, place)
            for target, place in zip(targets, sums, strict=True):
                _store(builder, builder.load(place), target)
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
    return ir.VectorType(_F32, width), dim // width


def _zeros(builder: Any, vector: ir.VectorType, number: int) -> list[Any]:
    places = [cgutils.alloca_once(builder, vector) for _ in range(number)]
    for place in places:
        builder.store(ir.Constant(vector, None), place)
    return places


def _at(builder: Any, address: Any, index: int, vector: ir.VectorType) -> Any:
    return builder.add(address, _I64(4 * vector.count * index))


def _load(builder: Any, address: Any, vector: ir.VectorType) -> Any:
    loaded = builder.load(builder.inttoptr(address, vector.as_pointer()))
    loaded.align = 1
    return loaded


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def _fused(builder: Any, a: Any, b: Any, added: Any) -> Any:
    product = builder.fmul(a, b, flags=_ANY_ORDER)
    return builder.fadd(product, added, flags=_ANY_ORDER)


def _spread(builder: Any, number: Any, vector: ir.VectorType) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(undefined, number, _I32(0))
    everywhere = ir.Constant(ir.VectorType(_I32, vector.count), None)
    return builder.shuffle_vector(single, undefined, everywhere)


def _products_of_pairs(builder: Any, a: Any, b: Any) -> Any:
    """[lanes] int16 each → [lanes / 2] int32: a[0] * b[0] + a[1] * b[1], ..."""
    sums = ir.VectorType(_I32, LANES // 2)
    if _MULTIPLIER.name is not None:
        return _call(builder, _MULTIPLIER.name, sums, [a, b])
    products = []
    for first in (0, 1):
        every_other = ir.VectorType(_I32, LANES // 2)(list(range(first, LANES, 2)))
        halves = [
            builder.sext(builder.shuffle_vector(v, v.type(ir.Undefined), every_other), sums)
            for v in (a, b)
        ]
        products.append(builder.mul(*halves))
    return builder.add(*products)


def _total(builder: Any, vector: Any) -> Any:
    return _call(builder, f"llvm.vector.reduce.add.v{vector.type.count}i32", _I32, [vector])


def _float_total(builder: Any, vector: Any) -> Any:
    name = f"llvm.vector.reduce.fadd.v{vector.type.count}f32"
    return _call(builder, name, _F32, [_F32(0.0), vector], fastmath=_ANY_ORDER)


def _call(builder: Any, name: str, returned: Any, args: list[Any], **options: Any) -> Any:
    function = ir.FunctionType(returned, [arg.type for arg in args])
    named = cgutils.get_or_insert_function(builder.module, function, name)
    return builder.call(named, args, **options)
