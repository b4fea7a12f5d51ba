"""Products of a model's weights with the tokens of a step, compiled by numba as it is loaded.

To verify a few tokens should take what one takes: the time to read the weights once. oneDNN, by
which vLLM multiplies, takes longer with each (`loadtest.float_products`). Here a pair of outputs is
multiplied with several tokens at a time while the weights that follow are fetched, and the weights
stay as they were loaded. Many tokens, as of a prompt, are multiplied by PyTorch.

Each number is a sum in an order of its own, so that a product of a few tokens comes out the same
to the last bit for each of them, whatever the others are.
"""

import logging
from collections.abc import Callable
from functools import cache, partial
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

from specray.registers import (
    BF16,
    F32,
    I64,
    call,
    load,
    prefetch,
    shuffled,
    store,
    x86_features,
    zeros,
)

logger = logging.getLogger(__name__)

Product = Callable[[int, int, int, int, int, int], None]

MOST_TOKENS: Final = 128
"""In a product that is computed here; more are PyTorch's.

From some 64 on PyTorch or oneDNN would be a little faster, but a verification is to add up as a
plain step does.
"""
_OUTPUTS: Final = 2
_BLOCK: Final = 2**17  # bytes of weights that stay in the cache for the tokens of all tiles


class Kind(NamedTuple):
    """How numbers of a type are multiplied."""

    dtype: torch.dtype
    register: int  # bytes
    tile: int  # tokens: two sums for each, two registers of weights and one of inputs
    fetched_ahead: int  # bytes, in the cache that a tile's inputs are in

    @property
    def lanes(self) -> int:
        """Numbers in a register."""
        return self.register // self.dtype.itemsize

    @property
    def adds_biases(self) -> bool:
        """Whether sums that are rounded are precise enough to add a bias to them."""
        return self.dtype == torch.float32


FLOAT32: Final = Kind(torch.float32, 32, 6, 2**14)
"""By AVX2, which has 16 registers."""
BFLOAT16: Final = Kind(torch.bfloat16, 64, 12, 2**13)
"""By AVX-512, which has 32, and its instruction that adds up pairs' products in float32."""


def install() -> None:
    """In a worker on a CPU whose model is not compiled, before it is loaded."""
    if (kind := kind_for_this_processor()) is not None:
        upstream.dispatch_cpu_unquantized_gemm = partial(_choose, kind)
        dtype = str(kind.dtype).removeprefix("torch.")
        logger.info("products of %s with up to %d tokens are specray's", dtype, MOST_TOKENS)


def kind_for_this_processor() -> Kind | None:
    """What it multiplies a few of faster by this than vLLM does; None: nothing.

    That is float32 with AVX2 but without AVX-512 (measured on a Zen 3), and bfloat16 with its own
    instruction in AVX-512 but without a matrix unit (on a Zen 5). Where AMD's own library is
    installed it is left to that, against which neither was measured.
    """
    if current_platform.is_zen_cpu():
        return None
    features = x86_features() or {}
    if features.get("avx512f"):
        is_bfloat16 = features.get("avx512bf16") and not features.get("amx-bf16")
        return BFLOAT16 if is_bfloat16 else None
    return FLOAT32 if features.get("avx2") and features.get("fma") else None


def fits(kind: Kind, weight: Tensor) -> bool:
    """Whether the weights of a product, [outputs, inputs], can be multiplied so.

    Only on one thread.
    """
    return (
        torch.get_num_threads() == 1
        and weight.dtype == kind.dtype
        and weight.device.type == "cpu"
        and weight.ndim == 2
        and weight.is_contiguous()
        and weight.numel() > 0
        and weight.shape[0] % _OUTPUTS == 0
        and weight.shape[1] % kind.lanes == 0
    )


def linear(kind: Kind, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear`, for weights that fit: x [..., inputs] → [..., outputs].

    In bfloat16, numbers below 2^-126 count as 0.
    """
    # Each question for a property of vLLM's parameters would otherwise be Python's to answer.
    with torch._C.DisableTorchFunctionSubclass():
        num_outputs, num_inputs = weight.shape
        num_tokens = x.numel() // num_inputs
        if (
            num_tokens > MOST_TOKENS
            or x.shape[-1] != num_inputs
            or x.dtype != weight.dtype
            or not x.is_cpu
            or not fits(kind, weight)  # others may have been loaded in their place
            or (bias is not None and not kind.adds_biases)
        ):
            return functional.linear(x, weight, bias)
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], num_outputs)
        addresses = x.data_ptr(), weight.data_ptr(), out.data_ptr()
        product(kind)(addresses[0], num_tokens, addresses[1], num_outputs, num_inputs, addresses[2])
        return out if bias is None else out.add_(bias)


def _choose(kind: Kind, layer: torch.nn.Module, remove_weight: bool) -> None:
    """Stands in for vLLM's choice of what multiplies a layer's weights."""
    has_bias = getattr(layer, "bias", None) is not None
    if fits(kind, layer.weight) and (kind.adds_biases or not has_bias):
        product(kind)  # compiled before the first request
        layer.cpu_linear = partial(linear, kind)
    else:
        _upstream_choice(layer, remove_weight)


@cache
def product(kind: Kind) -> Product:
    """Compiles out = x @ weight.T.

    What is returned takes the address of x, how many tokens there are, the address of the weights,
    how many outputs and inputs there are, and the address of what comes out: contiguous numbers of
    the kind, the outputs a multiple of two, the inputs of a register's lanes.
    """
    fetching, reading = _tile(kind, is_fetching=True), _tile(kind, is_fetching=False)
    item, tile = kind.dtype.itemsize, kind.tile

    @numba.njit(types.void(*[types.int64] * 6), nogil=True, error_model="numpy")
    def multiply(
        x: int, num_tokens: int, weight: int, num_outputs: int, num_inputs: int, out: int
    ) -> None:
        size, stride = item * num_inputs, item * num_outputs
        per_block = max(_OUTPUTS, _BLOCK // size // _OUTPUTS * _OUTPUTS)
        for start in range(0, num_outputs, per_block):
            end = min(num_outputs, start + per_block)
            for token in range(0, num_tokens, tile):
                num_rows, row = min(tile, num_tokens - token), x + token * size
                for output in range(start, end, _OUTPUTS):
                    weights = weight + output * size
                    target = out + token * stride + output * item
                    if token == 0:
                        fetching(num_rows, row, weights, size, target, stride)
                    else:
                        reading(num_rows, row, weights, size, target, stride)

    compiled: Product = multiply
    return compiled


class _Tile(NamedTuple):
    """What a tile's products take beside the number of tokens."""

    row: Any  # address of the first token's inputs
    weights: Any  # address of the weights of a pair of outputs
    size: Any  # bytes of a token's inputs
    out: Any  # address of the first token's outputs
    stride: Any  # how many bytes the tokens' outputs lie apart


def _tile(kind: Kind, *, is_fetching: bool) -> Callable[..., None]:
    """Products of up to a tile's tokens with the weights of a pair of outputs.

    What is returned takes how many tokens there are and a `_Tile`'s fields, all of them int64.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        end = builder.append_basic_block("end")
        choice = builder.switch(args[0], end)
        for num_rows in range(1, kind.tile + 1):
            block = builder.append_basic_block(f"rows.{num_rows}")
            choice.add_case(I64(num_rows), block)
            builder.position_at_end(block)
            _multiply(kind, builder, num_rows, _Tile(*args[1:]), is_fetching=is_fetching)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    @intrinsic
    def products(
        context: Any, num_rows: Any, row: Any, weights: Any, size: Any, out: Any, stride: Any
    ) -> Any:
        return types.void(*[types.int64] * 6), generate

    made: Callable[..., None] = products
    return made


def _multiply(kind: Kind, builder: Any, num_rows: int, tile: _Tile, *, is_fetching: bool) -> None:
    rows = [builder.add(tile.row, builder.mul(tile.size, I64(r))) for r in range(num_rows)]
    outputs = [builder.add(tile.weights, builder.mul(tile.size, I64(o))) for o in range(_OUTPUTS)]
    single = ir.VectorType(F32, kind.register // torch.float32.itemsize)
    numbers = ir.VectorType(BF16 if kind.dtype == torch.bfloat16 else F32, kind.lanes)
    sums = zeros(builder, single, num_rows * _OUTPUTS)
    step = I64(kind.register)
    with cgutils.for_range_slice(builder, I64(0), tile.size, step, intp=I64) as (place, _):
        weights = [load(builder, builder.add(output, place), numbers) for output in outputs]
        if is_fetching:  # as the weights lie: the processor does not guess it from pairs of rows
            ahead = builder.add(tile.weights, builder.mul(place, I64(_OUTPUTS)))
            for o in range(_OUTPUTS):
                prefetch(builder, builder.add(ahead, I64(kind.fetched_ahead + kind.register * o)))
        for r, inputs in enumerate(rows):
            values = load(builder, builder.add(inputs, place), numbers)
            for o, weight in enumerate(weights):
                total = sums[r * _OUTPUTS + o]
                added = _added(kind, builder, builder.load(total), values, weight)
                builder.store(added, total)
    for r in range(num_rows):
        pair = sums[r * _OUTPUTS : (r + 1) * _OUTPUTS]
        totals = _totals(builder, *map(builder.load, pair))
        if kind.dtype == torch.bfloat16:
            totals = builder.fptrunc(totals, ir.VectorType(BF16, _OUTPUTS))
        store(builder, totals, builder.add(tile.out, builder.mul(tile.stride, I64(r))))


def _added(kind: Kind, builder: Any, total: Any, values: Any, weights: Any) -> Any:
    """The sums with the products of two registers added."""
    if kind.dtype == torch.bfloat16:
        name, args = "llvm.x86.avx512bf16.dpbf16ps.512", [total, values, weights]
    else:
        name, args = f"llvm.fma.v{kind.lanes}f32", [values, weights, total]
    return call(builder, name, total.type, args)


def _totals(builder: Any, a: Any, b: Any) -> Any:
    """The sums of two registers' floats, [2], in one order: LLVM's own may be another each time."""
    size = a.type.count
    fours = range(0, size, 4)
    # Of each four: a's first two and b's, a's last two and b's.
    first = [i + k for i in fours for k in (0, size, 1, size + 1)]
    last = [place + 2 for place in first]
    total = builder.fadd(*(shuffled(builder, a, b, places) for places in (first, last)))
    while (half := total.type.count // 2) >= _OUTPUTS:
        halves = range(half), range(half, 2 * half)
        total = builder.fadd(*(shuffled(builder, total, total, places) for places in halves))
    return total


_upstream_choice = upstream.dispatch_cpu_unquantized_gemm
