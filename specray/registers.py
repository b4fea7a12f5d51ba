"""Instructions on whole registers, of which functions for numba are built.

Addresses are int64, as `array.ctypes.data` says, and nothing is checked. Registers wider than the
processor's are divided by LLVM.
"""

import platform
from collections.abc import Sequence
from typing import Any, Final

import llvmlite.binding
import numba
from llvmlite import ir
from numba.core import cgutils


class _BFloat16(ir.types.Type):
    """A type of LLVM's that llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"


F32, BF16 = ir.FloatType(), _BFloat16()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
ANY_ORDER: Final = ("reassoc", "contract")


def x86_features() -> dict[str, bool] | None:
    """What numba compiles for, by LLVM's names; None if that is no x86 processor.

    Empty where it is not this processor, or LLVM can't tell.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    config = numba.config
    if config.CPU_NAME or config.CPU_FEATURES or not config.ENABLE_AVX:
        return {}  # compiled for another processor than this one
    try:
        return dict(llvmlite.binding.get_host_cpu_features())
    except RuntimeError:
        return {}


def zeros(builder: Any, vector: ir.VectorType, number: int) -> list[Any]:
    """Places for so many registers of zeros; LLVM keeps them in registers."""
    places = [cgutils.alloca_once(builder, vector) for _ in range(number)]
    for place in places:
        builder.store(ir.Constant(vector, None), place)
    return places


def buffer(builder: Any, num_bytes: int) -> Any:
    """The address of memory of the function's own, at a multiple of 64; anything is in it."""
    with builder.goto_entry_block():
        place = builder.alloca(ir.ArrayType(I8, num_bytes))
    place.align = 64
    return builder.ptrtoint(place, I64)


def at(builder: Any, address: Any, index: int, vector: ir.VectorType) -> Any:
    """The address of a register of 4-byte numbers, so many registers behind another."""
    return builder.add(address, I64(4 * vector.count * index))


def load(builder: Any, address: Any, vector: ir.VectorType) -> Any:
    """A register from an address, which need not be a multiple of its size."""
    loaded = builder.load(builder.inttoptr(address, vector.as_pointer()))
    loaded.align = 1
    return loaded


def store(builder: Any, value: Any, address: Any) -> None:
    """Writes a register to an address, which need not be a multiple of its size."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def prefetch(builder: Any, address: Any) -> None:
    """Asks for a line of memory, to be read again; where there is none nothing happens."""
    pointer = builder.inttoptr(address, I8.as_pointer())
    is_write, locality, is_data = I32(0), I32(3), I32(1)
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, is_write, locality, is_data])


def fused(builder: Any, a: Any, b: Any, added: Any) -> Any:
    """a * b + added, rounded once where the processor can."""
    product = builder.fmul(a, b, flags=ANY_ORDER)
    return builder.fadd(product, added, flags=ANY_ORDER)


def spread(builder: Any, number: Any, vector: ir.VectorType) -> Any:
    """A number in each place of a register."""
    undefined = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(undefined, number, I32(0))
    everywhere = ir.Constant(ir.VectorType(I32, vector.count), None)
    return builder.shuffle_vector(single, undefined, everywhere)


def float_total(builder: Any, vector: Any) -> Any:
    """The sum of a register's floats."""
    name = f"llvm.vector.reduce.fadd.v{vector.type.count}f32"
    return call(builder, name, F32, [F32(0.0), vector], fastmath=ANY_ORDER)


def float_totals(builder: Any, vectors: Sequence[Any]) -> Any:
    """The sums of four registers' floats, [4]: an instruction adds up parts of two or all of them.

    Registers are of four floats at least.
    """
    a, b, c, d = vectors
    size = a.type.count

    def added(x: Any, y: Any, *ways: Sequence[int]) -> Any:
        """Adds up what the ways take of each four of x, by 0 to 3, and of y, by 4 to 7."""
        masks = [
            [four + i if i < 4 else size + four + i - 4 for four in range(0, size, 4) for i in way]
            for way in ways
        ]
        return builder.fadd(*(shuffled(builder, x, y, mask) for mask in masks), flags=ANY_ORDER)

    ab, cd = (added(x, y, (0, 4, 1, 5), (2, 6, 3, 7)) for x, y in ((a, b), (c, d)))
    total = added(ab, cd, (0, 1, 4, 5), (2, 3, 6, 7))
    while (half := total.type.count // 2) >= 4:
        halves = [range(half), range(half, 2 * half)]
        low, high = (shuffled(builder, total, total, list(places)) for places in halves)
        total = builder.fadd(low, high, flags=ANY_ORDER)
    return total


def shuffled(builder: Any, x: Any, y: Any, places: Sequence[int]) -> Any:
    """The numbers at these places of one register and, behind them, another."""
    mask = ir.Constant(ir.VectorType(I32, len(places)), list(places))
    return builder.shuffle_vector(x, y, mask)


def call(builder: Any, name: str, returned: Any, args: list[Any], **options: Any) -> Any:
    """Calls one of LLVM's own functions by its name."""
    function = ir.FunctionType(returned, [arg.type for arg in args])
    named = cgutils.get_or_insert_function(builder.module, function, name)
    return builder.call(named, args, **options)
