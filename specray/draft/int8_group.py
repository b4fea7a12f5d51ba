"""What the products of int8 weights have in common, whatever instruction multiplies them.

A group is as many outputs as two registers have sums. Functions of a group take addresses, as
`array.ctypes.data` says, and lengths that fit them: nothing is checked.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from specray.registers import F32, I64, at, fused, load, spread, store

Multiply = Callable[..., None]
"""Multiplies some rows with a group's weights, sums by their output's and their row's scale, and
adds the bias. Takes how many rows there are and the fields of `Group`, all of them int64."""


class Group(NamedTuple):
    """What `Multiply` takes beside the number of rows."""

    weights: Any  # address of [inputs / 2, outputs, 2] int8, in an order of the instruction's
    num_inputs: Any  # padded by zeros
    scales: Any  # address of [outputs] float32
    bias: Any  # address of [outputs] float32
    row: Any  # address of the first row: [inputs] int16, in an order of the instruction's
    row_stride: Any  # how many bytes the rows lie apart
    row_scales: Any  # address of [rows] float32
    row_sums: Any  # address of [rows] int32: of their inputs
    out: Any  # address of the first row's outputs: [outputs] float32
    out_stride: Any  # how many bytes the rows' outputs lie apart


def compiled(generate: Callable[[Any, Any, Group], None]) -> Multiply:
    """A function for numba that is called by its address: else all who call it compile it again.

    Args:
        generate: its code, by a builder, the number of rows and the group.
    """

    def generate_all(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        generate(builder, args[0], Group(*args[1:]))
        return context.get_dummy_value()

    @intrinsic
    def made(
        context: Any,
        num_rows: Any,
        weights: Any,
        num_inputs: Any,
        scales: Any,
        bias: Any,
        row: Any,
        row_stride: Any,
        row_scales: Any,
        row_sums: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        return types.void(*[types.int64] * 11), generate_all

    @numba.cfunc(types.void(*[types.int64] * 11))
    def multiply(
        num_rows: int,
        weights: int,
        num_inputs: int,
        scales: int,
        bias: int,
        row: int,
        row_stride: int,
        row_scales: int,
        row_sums: int,
        out: int,
        out_stride: int,
    ) -> None:
        made(
            num_rows,
            weights,
            num_inputs,
            scales,
            bias,
            row,
            row_stride,
            row_scales,
            row_sums,
            out,
            out_stride,
        )

    function: Multiply = multiply.ctypes
    return function


class Outputs:
    """Writes what a group's sums make."""

    def __init__(self, builder: Any, group: Group, num_lanes: int) -> None:
        """Loads what all rows share.

        Args:
            builder: of the function.
            group: what it takes.
            num_lanes: sums in a register.
        """
        self._builder, self._group = builder, group
        self._numbers: Final = ir.VectorType(F32, num_lanes)
        self._halves = [
            (
                load(builder, at(builder, group.scales, half, self._numbers), self._numbers),
                load(builder, at(builder, group.bias, half, self._numbers), self._numbers),
            )
            for half in (0, 1)
        ]

    def write(self, row: Any, sums: list[Any]) -> None:
        """Writes a row's outputs, of two registers of sums."""
        builder, group = self._builder, self._group
        source = builder.add(group.row_scales, builder.mul(row, I64(4)))
        row_scale = builder.load(builder.inttoptr(source, F32.as_pointer()))
        factor = spread(builder, row_scale, self._numbers)
        out = builder.add(group.out, builder.mul(group.out_stride, row))
        for half, (scales, bias) in enumerate(self._halves):
            numbers = builder.sitofp(sums[half], self._numbers)
            outputs = fused(builder, numbers, builder.fmul(scales, factor), bias)
            store(builder, outputs, at(builder, out, half, self._numbers))
