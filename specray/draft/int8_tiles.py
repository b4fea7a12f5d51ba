"""Products of int8 weights by AMX: 16 rows with 16 outputs, four inputs each, in an instruction.

Source: Intel, Architecture Instruction Set Extensions Programming Reference, "Intel AMX".
"""

from typing import Any, Final

import torch
from llvmlite import ir
from numba.core import cgutils

from specray.draft.int8_digits import INPUTS, LANES, LINE, SUMS, TILE, joined
from specray.draft.int8_group import Group, Outputs
from specray.registers import I8, I32, I64, buffer, call, load, store, x86_features

MOST_ROWS: Final = 16
_BYTES: Final = ir.VectorType(I8, LINE)


def are_there() -> bool:
    """Whether numba compiles for a processor with tiles, and Linux lets this process use them.

    It has to be asked once in each process; what else uses tiles there asks the same.
    """
    return bool((x86_features() or {}).get("amx-int8")) and torch.cpu._init_amx()


def multiply(builder: Any, num_rows: Any, group: Group) -> None:
    """For 1 to `MOST_ROWS` rows.

    Of the eight tiles four are sums, two of either digit; then come digits, then weights.
    """
    start = buffer(builder, 4 * TILE)
    _configure(builder, num_rows)
    for tile in range(4):
        _run(builder, "tilezero", I8(tile))
    high, low = group.row, builder.add(group.row, group.num_inputs)
    with cgutils.for_range(builder, builder.lshr(group.num_inputs, I64(6)), intp=I64) as block:
        place = builder.mul(block.index, I64(INPUTS))
        weights = builder.add(group.weights, builder.mul(block.index, I64(2 * TILE)))
        for tile, digits in ((4, high), (5, low)):
            _move(builder, "tileloadd64", tile, builder.add(digits, place), group.row_stride)
        for half in (0, 1):
            source = builder.add(weights, I64(TILE * half))
            _move(builder, "tileloadd64", 6 + half, source, I64(LINE))
            _run(builder, "tdpbsud", I8(half), I8(4), I8(6 + half))
            _run(builder, "tdpbsud", I8(2 + half), I8(5), I8(6 + half))
    for tile in range(4):
        _move(builder, "tilestored64", tile, builder.add(start, I64(TILE * tile)), I64(LINE))
    _run(builder, "tilerelease")
    outputs = Outputs(builder, group, LANES)
    with cgutils.for_range(builder, num_rows, intp=I64) as loop:
        line = builder.add(start, builder.mul(loop.index, I64(LINE)))
        of_row = [load(builder, builder.add(line, I64(TILE * tile)), SUMS) for tile in range(4)]
        outputs.write(loop.index, joined(builder, group, loop.index, of_row[:2], of_row[2:]))


def _configure(builder: Any, num_rows: Any) -> None:
    """Sums, and inputs: so many rows of 64 bytes; weights: 16 of them."""
    start = buffer(builder, LINE)
    sizes = ir.Constant(
        _BYTES, [1] + [0] * 15 + [LINE, 0] * 8 + [0] * 16 + [0] * 6 + [16] * 2 + [0] * 8
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
