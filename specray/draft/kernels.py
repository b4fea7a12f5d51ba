"""The attention of a draft on a CPU, compiled by numba at its first use.

At a few tokens a pass all of it waits for memory, or for PyTorch to get from one small operation
to the next: these loops read each byte once, in order, and do the rest on the way.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import float32

Array = Any  # of numpy; numba compiles the loops for what comes
AttendToRow = Callable[[Array, int, Array, int, int, Array], None]
AttendToBranch = Callable[[Array, int, Array, Array, int, int, int, Array], None]

# Sums in any order, which is what lets them be vectorised.
OPTIONS: Final = {"fastmath": {"reassoc", "contract"}, "nogil": True, "error_model": "numpy"}


@cache
def attention(dim: int) -> AttendToRow:
    """Causal attention of one row's new tokens, for heads of `dim`: half the time as a constant.

    What is returned takes

        qkv: [tokens, heads + 2 * kv_heads, dim] float32: queries, keys, values.
        first: where in it the row's tokens begin.
        states: [layers, 2 * kv_heads, room, dim] float32: the row's keys, then values; the new
            ones are written into it.
        layer: the layer's index.
        length: the row's tokens, the new ones included.
        out: [new tokens, heads * dim] float32, overwritten.
    """
    append, compute_scores, weigh = _append(dim), _scores(dim), _weighted_sum(dim)

    @numba.njit(**OPTIONS)
    def attend(qkv: Array, first: int, states: Array, layer: int, length: int, out: Array) -> None:
        num_new, kv_heads = len(out), states.shape[1] // 2
        group = qkv.shape[1] // kv_heads - 2
        weights = np.empty((group, length), np.float32)
        for new in range(num_new):
            token, seen = qkv[first + new], length - num_new + new + 1
            append(token[group * kv_heads :], states[layer], seen - 1)
            for h in range(kv_heads):
                compute_scores(token[h * group :], states[layer, h], seen, weights, 0)
                for g in range(group):
                    total = _exponentials(weights[g], seen)
                    start = (h * group + g) * dim
                    target = out[new, start : start + dim]
                    weigh(weights[g], states[layer, kv_heads + h], seen, total, target)

    return attend


@cache
def branch_attention(dim: int) -> AttendToBranch:
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
    append, compute_scores, weigh = _append(dim), _scores(dim), _weighted_sum(dim)

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
        token, group = qkv[index], qkv.shape[1] // kv_heads - 2
        weights = np.empty((group, length), np.float32)
        append(token[group * kv_heads :], tail[layer], own - 1)
        for h in range(kv_heads):
            queries = token[h * group :]
            compute_scores(queries, shared[layer, h], num_shared, weights, 0)
            compute_scores(queries, tail[layer, h], own, weights, num_shared)
            for g in range(group):
                total = _exponentials(weights[g], length)
                target = out[(h * group + g) * dim : (h * group + g + 1) * dim]
                weigh(weights[g], shared[layer, kv_heads + h], num_shared, total, target)
                values = tail[layer, kv_heads + h]
                for c in range(own):
                    weight = weights[g, num_shared + c] / total
                    for i in range(dim):
                        target[i] += weight * values[c, i]

    return attend


def _append(dim: int) -> Callable[[Array, Array, int], None]:
    @numba.njit(**OPTIONS)
    def append(new: Array, states: Array, position: int) -> None:
        for h in range(len(states)):
            for i in range(dim):
                states[h, position, i] = new[h, i]

    return append


def _scores(dim: int) -> Callable[[Array, Array, int, Array, int], None]:
    scale = np.float32(1 / math.sqrt(dim))

    @numba.njit(**OPTIONS)
    def compute_scores(
        queries: Array, keys: Array, seen: int, scores: Array, first: int
    ) -> None:  # into the columns from `first` on
        for c in range(seen):
            for g in range(len(scores)):
                score = float32(0)
                for i in range(dim):
                    score += keys[c, i] * queries[g, i]
                scores[g, first + c] = score * scale

    return compute_scores


def _weighted_sum(dim: int) -> Callable[[Array, Array, int, float, Array], None]:
    @numba.njit(**OPTIONS)
    def weigh(weights: Array, values: Array, seen: int, total: float, out: Array) -> None:
        for i in range(dim):
            out[i] = 0
        for c in range(0, seen - 3, 4):
            p, q, r, s = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
            for i in range(dim):
                first, second = p * values[c, i] + q * values[c + 1, i], r * values[c + 2, i]
                out[i] += first + second + s * values[c + 3, i]
        for c in range(seen - seen % 4, seen):
            for i in range(dim):
                out[i] += weights[c] * values[c, i]
        for i in range(dim):
            out[i] /= total

    return weigh


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
