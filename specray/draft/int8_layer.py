"""Layers with int8 weights on a CPU: all of a pass in one call of compiled code.

Each call takes time between the products, and gives back and asks for the interpreter's lock, which
the thread that reads commits wants too.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba import float32, int8
from torch import Tensor

from specray.draft.in_place_cache import AttendInPlace, InPlaceCache, attention_in_place
from specray.draft.int8 import Int8Weights
from specray.draft.int8_product import Product, product
from specray.draft.kernels import OPTIONS, Array, exp
from specray.draft.llama_layer import LayerWeights, Norm, Weights
from specray.draft.vectors import pointer

_NO_NORM = Norm(torch.empty(0, 0), 0.0)


class _Parts(NamedTuple):
    """What compiled code takes of a layer; `parts_at` counts on the order."""

    attention_norm: tuple[Array, np.float32]
    qkv: Int8Weights
    head_norm: tuple[Array, np.float32]
    out: Int8Weights
    mlp_norm: tuple[Array, np.float32]
    gate_up: Int8Weights
    down: Int8Weights

    @property
    def arrays(self) -> list[Array]:
        """All there are, in order."""
        return [part for parts in self for part in parts if isinstance(part, np.ndarray)]

    def is_like(self, other: "_Parts") -> bool:
        """Whether one can be found by the other's shapes, with the other's epsilons."""
        shapes, others = ([array.shape for array in parts.arrays] for parts in (self, other))
        return shapes == others and all(
            mine[1] == its[1]
            for mine, its in zip(self, other, strict=True)
            if not isinstance(mine, Int8Weights)
        )


class Int8Layer:
    """A `Layer` for float32 inputs; see `int8` for what is rounded."""

    def __init__(self, weights: LayerWeights) -> None:
        """Quantises a layer's products."""
        self.head_dim, self.num_turned = weights.head_dim, weights.num_turned
        self.parts = _Parts(
            _numbers(weights.attention_norm),
            Int8Weights.of(*weights.qkv),
            _numbers(weights.head_norm or _NO_NORM),
            Int8Weights.of(*weights.out),
            _numbers(weights.mlp_norm),
            Int8Weights.of(*weights.gate_up),
            Int8Weights.of(*weights.down),
        )

    @property
    def num_heads(self) -> int:
        """Those of the queries, the keys and the values."""
        return len(self.parts.qkv.scales) // self.head_dim

    def qkv(self, x: Tensor, turns: Tensor) -> Tensor:
        """See `Layer`."""
        out = torch.empty(len(x), self.num_heads, self.head_dim)
        begin = _compiled(product()).begin
        begin(x.numpy(), self.parts, _pairs(turns), self.num_turned, out.numpy())
        return out

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """See `Layer`."""
        out = x.clone()
        _compiled(product()).finish(out.numpy(), attended.numpy(), self.parts)
        return out


class Int8Layers:
    """All layers, for keys and values that are attended to in place."""

    def __init__(self, layers: Sequence[Int8Layer], kv_heads: int) -> None:
        """Takes layers that are alike: their weights are found by the first one's shapes."""
        first = layers[0]
        assert all(layer.parts.is_like(first.parts) for layer in layers)
        self._like, self._kept = first.parts, layers  # which hold the memory at the addresses
        addresses = [[array.ctypes.data for array in layer.parts.arrays] for layer in layers]
        self._addresses = np.array(addresses, np.int64)
        self._num_turned = first.num_turned
        self._num_heads, self._dim = first.num_heads, first.head_dim
        self._num_attended = (first.num_heads - 2 * kv_heads) * first.head_dim
        self._attend = attention_in_place(self._dim, first.num_heads // kv_heads - 2)

    def compute(self, x: Tensor, turns: Tensor, cache: InPlaceCache) -> Tensor:
        """What the last layer makes of the tokens of a pass that `cache` was told of.

        Args:
            x: [tokens, hidden], overwritten.
            turns: of their positions; see `Rotation`.
            cache: their rows'.
        """
        qkv = np.empty((len(x), self._num_heads, self._dim), np.float32)
        attended = np.empty((len(x), self._num_attended), np.float32)
        _whole(product(), self._attend)(
            *(x.numpy(), self._like, self._addresses, _pairs(turns), self._num_turned),
            *(cache.table, qkv, attended),
        )
        return x


class Int8Head:
    """The norm behind the layers, and the head."""

    def __init__(self, norm: Norm, weights: Weights) -> None:
        """Quantises the head."""
        self._norm, self._weights = _numbers(norm), Int8Weights.of(*weights)

    def __call__(self, x: Tensor) -> Tensor:
        """The logits [tokens, columns] of tokens [tokens, hidden]."""
        logits = torch.empty(len(x), len(self._weights.scales))
        x = x.contiguous()  # else it is compiled once more, for others
        _compiled(product()).score(x.numpy(), self._norm, self._weights, logits.numpy())
        return logits


class _Compiled(NamedTuple):
    begin: Callable[..., None]
    finish: Callable[..., None]
    score: Callable[..., None]


@cache
def _compiled(multiply: Product) -> _Compiled:
    """What comes before and after attention and after all layers, by a product for numba."""

    @numba.njit(**OPTIONS)
    def begin(x: Array, parts: _Parts, turns: Array, num_turned: int, out: Array) -> None:
        normed = np.empty_like(x)
        _normalize(x, parts.attention_norm, normed)
        weight, scales, bias = parts.qkv
        multiply(normed, weight, scales, bias, out.reshape(len(x), -1))
        head_weights, epsilon = parts.head_norm
        for token in range(len(x)):
            for h in range(len(head_weights)):
                head = out[token, h : h + 1]
                _normalize(head, (head_weights[h], epsilon), head)
            for h in range(num_turned):
                head, turn = out[token, h], turns[token]
                for i in range(len(turn)):
                    a, b, cosine, sine = head[2 * i], head[2 * i + 1], turn[i, 0], turn[i, 1]
                    head[2 * i], head[2 * i + 1] = a * cosine - b * sine, a * sine + b * cosine

    @numba.njit(**OPTIONS)
    def finish(x: Array, attended: Array, parts: _Parts) -> None:  # in the place of x
        made, normed = np.empty_like(x), np.empty_like(x)
        weight, scales, bias = parts.out
        multiply(attended, weight, scales, bias, made)
        _add(made, x)
        _normalize(x, parts.mlp_norm, normed)
        weight, scales, bias = parts.gate_up
        hidden = np.empty((len(x), len(scales)), np.float32)
        multiply(normed, weight, scales, bias, hidden)
        size = len(scales) // 2
        gated = np.empty((len(x), size), np.float32)
        for r in range(len(x)):
            for i in range(size):
                gated[r, i] = _silu(hidden[r, i]) * hidden[r, size + i]
        weight, scales, bias = parts.down
        multiply(gated, weight, scales, bias, made)
        _add(made, x)

    @numba.njit(**OPTIONS)
    def score(x: Array, norm: Any, weights: Int8Weights, logits: Array) -> None:
        normed = np.empty_like(x)
        _normalize(x, norm, normed)
        weight, scales, bias = weights
        multiply(normed, weight, scales, bias, logits)

    return _Compiled(begin, finish, score)


@cache
def _whole(multiply: Product, attend: AttendInPlace) -> Callable[..., None]:
    """All layers; see `Int8Layers.compute`."""
    begin, finish, _ = _compiled(multiply)

    @numba.njit(**OPTIONS)
    def weights_at(addresses: Array, like: Int8Weights) -> Int8Weights:
        return Int8Weights(
            numba.carray(pointer(addresses[0]), like.weight.shape, int8),
            numba.carray(pointer(addresses[1]), like.scales.shape, float32),
            numba.carray(pointer(addresses[2]), like.bias.shape, float32),
        )

    @numba.njit(**OPTIONS)
    def norm_at(address: int, like: tuple[Array, float]) -> tuple[Array, float]:
        return numba.carray(pointer(address), like[0].shape, float32), like[1]

    @numba.njit(**OPTIONS)
    def parts_at(addresses: Array, like: _Parts) -> _Parts:
        """As arguments, what is compiled would grow with the layers."""
        return _Parts(
            norm_at(addresses[0], like.attention_norm),
            weights_at(addresses[1:4], like.qkv),
            norm_at(addresses[4], like.head_norm),
            weights_at(addresses[5:8], like.out),
            norm_at(addresses[8], like.mlp_norm),
            weights_at(addresses[9:12], like.gate_up),
            weights_at(addresses[12:15], like.down),
        )

    @numba.njit(**OPTIONS)
    def compute(
        x: Array,
        like: _Parts,
        addresses: Array,
        turns: Array,
        num_turned: int,
        table: Array,
        qkv: Array,
        attended: Array,
    ) -> None:
        for index in range(len(addresses)):
            parts = parts_at(addresses[index], like)
            begin(x, parts, turns, num_turned, qkv)
            attend(qkv, table, index, attended)
            finish(x, attended, parts)

    return compute


def _pairs(turns: Tensor) -> Array:
    """[tokens, dim / 2, 2]: cosines and sines."""
    pairs: Array = torch.view_as_real(turns).numpy()[:, 0]
    return pairs


def _numbers(norm: Norm) -> tuple[Array, np.float32]:
    return norm.weight.numpy(), np.float32(norm.epsilon)


@numba.njit(**OPTIONS)
def _normalize(x: Array, norm: tuple[Array, float], out: Array) -> None:
    weight, epsilon = norm
    for r in range(len(x)):
        squares = float32(0)
        for i in range(x.shape[1]):
            squares += x[r, i] * x[r, i]
        scale = float32(1) / np.sqrt(squares / float32(x.shape[1]) + epsilon)
        for i in range(x.shape[1]):
            out[r, i] = x[r, i] * scale * weight[i]


@numba.njit(**OPTIONS)
def _add(x: Array, out: Array) -> None:
    for r in range(len(x)):
        for i in range(x.shape[1]):
            out[r, i] += x[r, i]


@numba.njit(**OPTIONS)
def _silu(x: float) -> float:
    """x * sigmoid(x)."""
    small = exp(-abs(x))
    return x * (float32(1) if x >= 0 else small) / (float32(1) + small)
