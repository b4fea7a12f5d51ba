"""A layer with int8 weights on a CPU: two calls of compiled code, whatever it is made of."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba import float32
from torch import Tensor

from specray.draft.int8 import Int8Weights
from specray.draft.int8_product import Product, product
from specray.draft.kernels import OPTIONS, Array, exp
from specray.draft.llama_layer import LayerWeights, Norm

_NO_NORM = Norm(torch.empty(0, 0), 0.0)


class Int8Layer:
    """A `Layer` for float32 inputs; see `int8` for what is rounded."""

    def __init__(self, weights: LayerWeights) -> None:
        """Quantises a layer's products."""
        self._head_dim, self._num_turned = weights.head_dim, weights.num_turned
        self._attention_norm = _numbers(weights.attention_norm)
        self._qkv = Int8Weights.of(*weights.qkv)
        self._head_norm = _numbers(weights.head_norm or _NO_NORM)
        self._out = Int8Weights.of(*weights.out)
        self._mlp_norm = _numbers(weights.mlp_norm)
        self._gate_up = Int8Weights.of(*weights.gate_up)
        self._down = Int8Weights.of(*weights.down)

    def qkv(self, x: Tensor, turns: Tensor) -> Tensor:
        """See `Layer`."""
        out = torch.empty(len(x), len(self._qkv.scales) // self._head_dim, self._head_dim)
        begin = _compiled(product()).begin
        turning = torch.view_as_real(turns).numpy()[:, 0]
        norms, num_turned = (self._attention_norm, self._head_norm), self._num_turned
        begin(x.numpy(), norms, self._qkv, turning, num_turned, out.numpy())
        return out

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """See `Layer`."""
        out = torch.empty(x.shape)
        finish = _compiled(product()).finish
        weights = (self._out, self._mlp_norm, self._gate_up, self._down)
        finish(x.numpy(), attended.numpy(), *weights, out.numpy())
        return out


class _Compiled(NamedTuple):
    begin: Callable[..., None]
    finish: Callable[..., None]


@cache
def _compiled(multiply: Product) -> _Compiled:
    """A layer's two functions, with a product that numba can call."""

    @numba.njit(**OPTIONS)
    def begin(
        x: Array, norms: Any, weights: Any, turns: Array, num_turned: int, out: Array
    ) -> None:
        norm, head_norm = norms
        normed = np.empty_like(x)
        _normalize(x, norm, normed)
        weight, scales, bias = weights
        multiply(normed, weight, scales, bias, out.reshape(len(x), -1))
        head_weights, epsilon = head_norm
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
    def finish(
        x: Array, attended: Array, projection: Any, norm: Any, gate_up: Any, down: Any, out: Array
    ) -> None:
        residual, normed = np.empty_like(x), np.empty_like(x)
        weight, scales, bias = projection
        multiply(attended, weight, scales, bias, residual)
        _add(x, residual)
        _normalize(residual, norm, normed)
        weight, scales, bias = gate_up
        hidden = np.empty((len(x), len(scales)), np.float32)
        multiply(normed, weight, scales, bias, hidden)
        size = len(scales) // 2
        gated = np.empty((len(x), size), np.float32)
        for r in range(len(x)):
            for i in range(size):
                gated[r, i] = _silu(hidden[r, i]) * hidden[r, size + i]
        weight, scales, bias = down
        multiply(gated, weight, scales, bias, out)
        _add(residual, out)

    return _Compiled(begin, finish)


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
