"""Products of float32 weights with the tokens of a step, compiled by numba before the model loads.

To verify a few tokens should take what one takes: the time to read the weights once. oneDNN, by
which vLLM multiplies, takes longer with each (`loadtest.float_products`). Here a pair of outputs is
multiplied with up to six tokens at a time while the weights that follow are fetched, and the
weights stay as they were loaded.

Each number is a sum in an order of its own that no other token of the step changes, so that a
token comes out the same to the last bit, verified or not.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numba
import torch
import vllm.model_executor.layers.utils as upstream
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor
from vllm.platforms import current_platform

from specray.registers import F32, I64, call, float_total, load, prefetch, x86_features, zeros

Product = Callable[[int, int, int, int, int, int], None]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_TILE: Final = 6  # tokens: twelve sums, two registers of weights, one of inputs; AVX2 has 16
_OUTPUTS: Final = 2
_BLOCK: Final = 2**17  # bytes of weights that stay in the cache for the tokens of all tiles
_FETCHED_AHEAD: Final = 2**14  # bytes


def install() -> None:
    """In a worker on a CPU, before its model is loaded; where it is compiled it stays vLLM's."""
    if not current_platform.is_zen_cpu():  # AMD's own library has been chosen
        upstream.dispatch_cpu_unquantized_gemm = _choose


def num_lanes() -> int:
    """Floats in a register of this processor; 0 where it can't multiply and add at once."""
    features = x86_features() or {}
    if not features.get("fma"):
        return 0
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 0


def fits(weight: Tensor) -> bool:
    """Whether the weights of a product, [outputs, inputs], can be multiplied here.

    On one thread only: the processor's others are OpenMP's, which numba does not know.
    """
    lanes = num_lanes()
    return (
        lanes > 0
        and torch.get_num_threads() == 1
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.ndim == 2
        and weight.is_contiguous()
        and weight.shape[0] % _OUTPUTS == 0
        and weight.shape[1] % lanes == 0
    )


def _choose(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Stands in for vLLM's choice of what multiplies a layer's weights."""
    if fits(layer.weight):
        layer.cpu_linear = linear()
    else:
        _upstream_choice(layer, remove_weight)


def linear() -> Linear:
    """`torch.nn.functional.linear`, for weights that fit: x [..., inputs] → [..., outputs]."""
    multiply = product(num_lanes())

    def compute(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        num_outputs, num_inputs = weight.shape
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], num_outputs)
        num_tokens = x.numel() // num_inputs
        multiply(
            x.data_ptr(), num_tokens, weight.data_ptr(), num_outputs, num_inputs, out.data_ptr()
        )
        return out if bias is None else out.add_(bias)

    return compute


@cache
def product(lanes: int) -> Product:
    """Compiles out = x @ weight.T for registers of so many floats.

    What is returned takes the address of x, how many tokens there are, the address of the weights,
    how many outputs and inputs there are, and the address of what comes out: contiguous float32,
    the outputs a multiple of two, the inputs of `lanes`.
    """
    fetching, reading = _tile(lanes, is_fetching=True), _tile(lanes, is_fetching=False)

    @numba.njit(types.void(*[types.int64] * 6), nogil=True, error_model="numpy")
    def multiply(
        x: int, num_tokens: int, weight: int, num_outputs: int, num_inputs: int, out: int
    ) -> None:
        size = 4 * num_inputs
        per_block = max(_OUTPUTS, _BLOCK // size // _OUTPUTS * _OUTPUTS)
        for start in range(0, num_outputs, per_block):
            end = min(num_outputs, start + per_block)
            for token in range(0, num_tokens, _TILE):
                num_rows, row = min(_TILE, num_tokens - token), x + token * size
                for output in range(start, end, _OUTPUTS):
                    weights = weight + output * size
                    target = out + 4 * (token * num_outputs + output)
                    if token == 0:
                        fetching(num_rows, row, weights, num_inputs, target, 4 * num_outputs)
                    else:
                        reading(num_rows, row, weights, num_inputs, target, 4 * num_outputs)

    compiled: Product = multiply
    return compiled


def _tile(lanes: int, *, is_fetching: bool) -> Callable[..., None]:
    """Products of 1 to `_TILE` tokens with the weights of a pair of outputs.

    What is returned takes how many tokens there are, the addresses of the first one's inputs and
    of the weights, the number of inputs, the address of the first token's outputs, and how many
    bytes behind them the next one's lie.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        end = builder.append_basic_block("end")
        choice = builder.switch(args[0], end)
        for num_rows in range(1, _TILE + 1):
            block = builder.append_basic_block(f"rows.{num_rows}")
            choice.add_case(I64(num_rows), block)
            builder.position_at_end(block)
            _multiply(builder, lanes, num_rows, *args[1:], is_fetching=is_fetching)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        context: Any, num_rows: Any, row: Any, weights: Any, num_inputs: Any, out: Any, stride: Any
    ) -> Any:
        return types.void(*[types.int64] * 6), generate

    made: Callable[..., None] = tile
    return made


def _multiply(
    builder: Any,
    lanes: int,
    num_rows: int,
    row: Any,
    weights: Any,
    num_inputs: Any,
    out: Any,
    stride: Any,
    *,
    is_fetching: bool,
) -> None:
    vector = ir.VectorType(F32, lanes)
    size = builder.shl(num_inputs, I64(2))
    rows = [builder.add(row, builder.mul(size, I64(r))) for r in range(num_rows)]
    outputs = [builder.add(weights, builder.mul(size, I64(o))) for o in range(_OUTPUTS)]
    sums = zeros(builder, vector, num_rows * _OUTPUTS)
    step = I64(4 * lanes)
    with cgutils.for_range_slice(builder, I64(0), size, step, intp=I64) as (place, _):
        numbers = [load(builder, builder.add(output, place), vector) for output in outputs]
        if is_fetching:  # of the weights as they lie: two rows at a time, which it does not guess
            ahead = builder.add(weights, builder.mul(place, I64(_OUTPUTS)))
            for o in range(_OUTPUTS):
                prefetch(builder, builder.add(ahead, I64(_FETCHED_AHEAD + 4 * lanes * o)))
        for r, inputs in enumerate(rows):
            values = load(builder, builder.add(inputs, place), vector)
            for o, number in enumerate(numbers):
                total = sums[r * _OUTPUTS + o]
                args = [values, number, builder.load(total)]
                fused = call(builder, f"llvm.fma.v{lanes}f32", vector, args)
                builder.store(fused, total)
    for r in range(num_rows):
        target = builder.add(out, builder.mul(stride, I64(r)))
        for o in range(_OUTPUTS):
            address = builder.inttoptr(builder.add(target, I64(4 * o)), F32.as_pointer())
            builder.store(float_total(builder, builder.load(sums[r * _OUTPUTS + o])), address)


_upstream_choice = upstream.dispatch_cpu_unquantized_gemm
