"""Products of float32 weights with the tokens of a step, compiled by numba as a model is loaded.

To verify a few tokens should take what one takes: the time to read the weights once. oneDNN, by
which vLLM multiplies, takes longer with each (`loadtest.float_products`). Here a pair of outputs is
multiplied with up to six tokens at a time while the weights that follow are fetched, and the
weights stay as they were loaded. Many tokens, as of a prompt, are multiplied by PyTorch.

Each number is a sum in an order of its own, so that a product of a few tokens comes out the same
to the last bit for each of them, whatever the others are.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numba
import torch
import vllm.model_executor.layers.utils as upstream
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor
from torch.nn import functional
from vllm.platforms import current_platform

from specray.registers import F32, I32, I64, call, load, prefetch, x86_features, zeros

logger = logging.getLogger(__name__)

Product = Callable[[int, int, int, int, int, int], None]

MOST_TOKENS: Final = 128
"""In a product that is computed here; more are PyTorch's."""
_TILE: Final = 6  # tokens: twelve sums, two registers of weights, one of inputs; AVX2 has 16
_OUTPUTS: Final = 2
_LANES: Final = 8  # floats in a register
_BLOCK: Final = 2**17  # bytes of weights that stay in the cache for the tokens of all tiles
_FETCHED_AHEAD: Final = 2**14  # bytes


def install() -> None:
    """In a worker on a CPU whose model is not compiled, before it is loaded."""
    if is_for_this_processor():
        upstream.dispatch_cpu_unquantized_gemm = _choose
        logger.info("products of float32 weights with up to %d tokens are specray's", MOST_TOKENS)


def is_for_this_processor() -> bool:
    """Whether it multiplies eight floats at once, and no more.

    With AVX-512 it was not measured against vLLM's, nor against AMD's own library.
    """
    features = x86_features() or {}
    has_avx2 = bool(features.get("avx2") and features.get("fma"))
    return has_avx2 and not features.get("avx512f") and not current_platform.is_zen_cpu()


def fits(weight: Tensor) -> bool:
    """Whether the weights of a product, [outputs, inputs], can be multiplied here.

    Only on one thread.
    """
    return (
        torch.get_num_threads() == 1
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.ndim == 2
        and weight.is_contiguous()
        and weight.numel() > 0
        and weight.shape[0] % _OUTPUTS == 0
        and weight.shape[1] % _LANES == 0
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear`, for weights that fit: x [..., inputs] → [..., outputs]."""
    num_outputs, num_inputs = weight.shape
    num_tokens = x.numel() // num_inputs
    if num_tokens > MOST_TOKENS or x.shape[-1] != num_inputs or x.dtype != weight.dtype:
        return functional.linear(x, weight, bias)
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], num_outputs)
    addresses = x.data_ptr(), weight.data_ptr(), out.data_ptr()
    product()(addresses[0], num_tokens, addresses[1], num_outputs, num_inputs, addresses[2])
    return out if bias is None else out.add_(bias)


def _choose(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Stands in for vLLM's choice of what multiplies a layer's weights."""
    if fits(layer.weight):
        product()  # compiled before the first request
        layer.cpu_linear = linear
    else:
        _upstream_choice(layer, remove_weight)


@cache
def product() -> Product:
    """Compiles out = x @ weight.T.

    What is returned takes the address of x, how many tokens there are, the address of the weights,
    how many outputs and inputs there are, and the address of what comes out: contiguous float32,
    the outputs a multiple of two, the inputs of eight.
    """
    fetching, reading = _tile(is_fetching=True), _tile(is_fetching=False)

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


class _Tile(NamedTuple):
    """What a tile's products take beside the number of tokens."""

    row: Any  # address of the first token's inputs
    weights: Any  # address of the weights of a pair of outputs
    num_inputs: Any
    out: Any  # address of the first token's outputs
    stride: Any  # how many bytes the tokens' outputs lie apart


def _tile(*, is_fetching: bool) -> Callable[..., None]:
    """Products of 1 to `_TILE` tokens with the weights of a pair of outputs.

    What is returned takes how many tokens there are and a `_Tile`'s fields, all of them int64.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        end = builder.append_basic_block("end")
        choice = builder.switch(args[0], end)
        for num_rows in range(1, _TILE + 1):
            block = builder.append_basic_block(f"rows.{num_rows}")
            choice.add_case(I64(num_rows), block)
            builder.position_at_end(block)
            _multiply(builder, num_rows, _Tile(*args[1:]), is_fetching=is_fetching)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    @intrinsic
    def products(
        context: Any, num_rows: Any, row: Any, weights: Any, num_inputs: Any, out: Any, stride: Any
    ) -> Any:
        return types.void(*[types.int64] * 6), generate

    made: Callable[..., None] = products
    return made


def _multiply(builder: Any, num_rows: int, tile: _Tile, *, is_fetching: bool) -> None:
    vector = ir.VectorType(F32, _LANES)
    size = builder.shl(tile.num_inputs, I64(2))
    rows = [builder.add(tile.row, builder.mul(size, I64(r))) for r in range(num_rows)]
    outputs = [builder.add(tile.weights, builder.mul(size, I64(o))) for o in range(_OUTPUTS)]
    sums = zeros(builder, vector, num_rows * _OUTPUTS)
    step = I64(4 * _LANES)
    with cgutils.for_range_slice(builder, I64(0), size, step, intp=I64) as (place, _):
        numbers = [load(builder, builder.add(output, place), vector) for output in outputs]
        if is_fetching:  # as the weights lie: the processor does not guess it from pairs of rows
            ahead = builder.add(tile.weights, builder.mul(place, I64(_OUTPUTS)))
            for o in range(_OUTPUTS):
                prefetch(builder, builder.add(ahead, I64(_FETCHED_AHEAD + 4 * _LANES * o)))
        for r, inputs in enumerate(rows):
            values = load(builder, builder.add(inputs, place), vector)
            for o, number in enumerate(numbers):
                total = sums[r * _OUTPUTS + o]
                args = [values, number, builder.load(total)]
                builder.store(call(builder, f"llvm.fma.v{_LANES}f32", vector, args), total)
    for r in range(num_rows):
        target = builder.add(tile.out, builder.mul(tile.stride, I64(r)))
        for o in range(_OUTPUTS):
            address = builder.inttoptr(builder.add(target, I64(4 * o)), F32.as_pointer())
            builder.store(_total(builder, builder.load(sums[r * _OUTPUTS + o])), address)


def _total(builder: Any, vector: Any) -> Any:
    """The sum of a register's floats in one order: LLVM's own may be another each time."""
    num_lanes = vector.type.count
    while num_lanes > 1:
        num_lanes //= 2
        halves = [
            builder.shuffle_vector(
                vector,
                vector.type(ir.Undefined),
                ir.VectorType(I32, num_lanes)(list(range(start, start + num_lanes))),
            )
            for start in (0, num_lanes)
        ]
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, I32(0))


_upstream_choice = upstream.dispatch_cpu_unquantized_gemm
