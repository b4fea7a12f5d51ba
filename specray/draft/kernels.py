"""The attention of a draft on a CPU, compiled by numba at its first use, and what goes with it.

At a few tokens a pass all of it waits for memory, or for PyTorch to get from one small operation
to the next.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import float32

from specray.draft.vectors import row_products, weighted_sums

Array = Any  # of numpy; numba compiles the loops for what comes
AttendToRow = Callable[[Array, int, Array, int, int, Array], None]
AttendToBranch = Callable[[Array, int, Array, Array, int, int, int, Array], None]

# Sums in any order, which is what lets them be vectorised.
OPTIONS: Final = {"fastmath": {"reassoc", "contract"}, "nogil": True, "error_model": "numpy"}


@cache
def attention(dim: int, group: int) -> AttendToRow:
    """Causal attention of one row's new tokens, for heads of `dim`, `group` to a key's.

    What is returned takes

        qkv: [tokens, heads + 2 * kv_heads, dim] float32: queries, keys, values.
        first: where in it the row's tokens begin.
        states: [layers, 2 * kv_heads, room, dim] float32: the row's keys, then values; the new
            ones are written into it.
        layer: the layer's index.
        length: the row's tokens, the new ones included.
        out: [new tokens, heads * dim] float32, overwritten.
    """
    append, compute_scores, weigh = _append(dim), _scores(dim, group), _weighted_sum(dim, group)

    @numba.njit(**OPTIONS)
    def attend(qkv: Array, first: int, states: Array, layer: int, length: int, out: Array) -> None:
        num_new, kv_heads = len(out), states.shape[1] // 2
        weights = np.empty((group, length), np.float32)
        out[:] = 0
        for new in range(num_new):
            token, seen = qkv[first + new], length - num_new + new + 1
            append(token[group * kv_heads :], states[layer], seen - 1)
            for h in range(kv_heads):
                compute_scores(token[h * group :], states[layer, h], seen, weights, 0)
                _softmax(weights, seen)
                target = out[new, h * group * dim : (h + 1) * group * dim]
                weigh(weights, 0, states[layer, kv_heads + h], seen, target)

    return attend


@cache
def branch_attention(dim: int, group: int) -> AttendToBranch:
    """Attention of a branch's one new token: to what it shares with others, and to its own tail.

    What is returned takes

        qkv: [tokens, heads + 2 * kv_heads, dim] float32: queries, keys, values.
        index: the branch's token in it.
        shared: [layers, 2 * kv_heads, room, dim] float32: keys, then values; only read.
        tail: the same for the branch alone; the new token's are written into it.
        num_shared: how many tokens of `shared` are the branch's.
        layer: the layer's index.
        length: the branch's tokens, shared and own, the new one included.
        out: [heads * dim] float32, overwritten.
    """
    append, compute_scores, weigh = _append(dim), _scores(dim, group), _weighted_sum(dim, group)

    @numba.njit(**OPTIONS)
    def attend(
        qkv: Array,
        index: int,
        shared: Array,
        tail: Array,
        num_shared: int,
        layer: int,
        length: int,
        out: Array,
    ) -> None:
        kv_heads, own = shared.shape[1] // 2, length - num_shared
        token = qkv[index]
        weights = np.empty((group, length), np.float32)
        out[:] = 0
        append(token[group * kv_heads :], tail[layer], own - 1)
        for h in range(kv_heads):
            queries = token[h * group :]
            compute_scores(queries, shared[layer, h], num_shared, weights, 0)
            compute_scores(queries, tail[layer, h], own, weights, num_shared)
            _softmax(weights, length)
            target = out[h * group * dim : (h + 1) * group * dim]
            weigh(weights, 0, shared[layer, kv_heads + h], num_shared, target)
            weigh(weights, num_shared, tail[layer, kv_heads + h], own, target)

    return attend


def _append(dim: int) -> Callable[[Array, Array, int], None]:
    @numba.njit(**OPTIONS)
    def append(new: Array, states: Array, position: int) -> None:
        for h in range(len(states)):
            for i in range(dim):
                states[h, position, i] = new[h, i]

    return append


def _scores(dim: int, group: int) -> Callable[[Array, Array, int, Array, int], None]:
    scale, products = np.float32(1 / math.sqrt(dim)), row_products(dim, group)

    @numba.njit(**OPTIONS)
    def compute_scores(
        queries: Array, keys: Array, seen: int, scores: Array, first: int
    ) -> None:  # into the columns from `first` on
        stride = 4 * scores.shape[1]
        target = scores.ctypes.data + 4 * first
        products(queries.ctypes.data, keys.ctypes.data, seen, scale, target, stride)

    return compute_scores


def _weighted_sum(dim: int, group: int) -> Callable[[Array, int, Array, int, Array], None]:
    sums = weighted_sums(dim, group)

    @numba.njit(**OPTIONS)
    def weigh(
        weights: Array, first: int, values: Array, seen: int, out: Array
    ) -> None:  # with the columns from `first` on; added to `out`
        stride = 4 * weights.shape[1]
        sums(weights.ctypes.data + 4 * first, stride, values.ctypes.data, seen, out.ctypes.data)

    return weigh


@numba.njit(**OPTIONS)
def _softmax(scores: Array, seen: int) -> None:
    """Makes each row's first `seen` scores weights that sum to 1."""
    for g in range(len(scores)):
        row = scores[g]
        part = float32(1) / _exponentials(row, seen)
        for c in range(seen):
            row[c] *= part


@numba.njit(**OPTIONS)
def _exponentials(scores: Array, seen: int) -> float:
    """Replaces scores by exp(score - largest); returns their sum."""
    largest = scores[0]
    for c in range(1, seen):
        largest = max(largest, scores[c])
    total = float32(0)
    for c in range(seen):
        weight = exp(scores[c] - largest)
        scores[c] = weight
        total += weight
    return total


@numba.njit(**OPTIONS)
def exp(x: float) -> float:
    """The exponential of x ≤ 0 to 1e-5 of it, small below -80; the library's is not vectorised."""
    y = max(x, float32(-80)) * float32(1 / 64)
    tail = float32(1 / 24) + y * (float32(1 / 120) + y * float32(1 / 720))
    p = float32(1) + y * (float32(1) + y * (float32(1 / 2) + y * (float32(1 / 6) + y * tail)))
    for _ in range(6):
        p *= p
    return p
