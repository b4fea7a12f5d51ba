"""Keys and values where they lie, for float32 on a CPU: nothing is copied, no row is padded."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import numba
import numpy as np
import torch
from numba import float32
from torch import Tensor

from specray.draft.addressed_cache import entry
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.kernels import OPTIONS, Array, attention, branch_attention
from specray.draft.vectors import pointer

AttendInPlace = Callable[[Array, Array, int, Array], None]


class InPlaceCache:
    """Attends row by row to the sessions' own memory; see `AttentionCache`."""

    def __init__(self, rows: Sequence[CachedRow]) -> None:
        self._kept = tuple(rows)  # and so the memory at their addresses
        self._entries = [entry(row) for row in rows]
        self._kv_heads = rows[0].states.shape[1] // 2
        self.table: Array = np.empty((0, 0), np.int64)
        """Of the pass that runs, [rows, ENTRY + 3] int64; see `attention_in_place`."""

    def start_pass(self, new: NewTokens) -> NewTokens:
        """See `AttentionCache`."""
        starts = accumulate(new.counts, initial=0)
        rows = zip(self._entries, starts, new.counts, new.lengths, strict=False)
        self.table = np.array([(*known, *its) for known, *its in rows], np.int64)
        return new

    def attend(self, qkv: Tensor, layer: int) -> Tensor:
        """See `AttentionCache`; a branch takes one token a pass."""
        num_tokens, num_heads, dim = qkv.shape
        attended = torch.empty(num_tokens, (num_heads - 2 * self._kv_heads) * dim)
        attend = attention_in_place(dim, num_heads // self._kv_heads - 2)
        attend(qkv.numpy(), self.table, layer, attended.numpy())
        return attended

    def store(self) -> None:
        """See `AttentionCache`; all has been written in place."""


@cache
def attention_in_place(dim: int, group: int) -> AttendInPlace:
    """Attention of all rows, for heads of `dim`, `group` to a key's.

    What is returned takes

        qkv: [tokens, heads + 2 * kv_heads, dim] float32: queries, keys, values.
        table: [rows, ENTRY + 3] int64: what `addressed_cache.entry` says of a row, its first token
            in `qkv`, how many it has there, and its length with these.
        layer: the layer's index.
        out: [tokens, heads * dim] float32, overwritten.
    """
    attend_to_row, attend_to_branch = attention(dim, group), branch_attention(dim, group)

    @numba.njit(**OPTIONS)
    def attend(qkv: Array, table: Array, layer: int, out: Array) -> None:
        num_states = 2 * (qkv.shape[1] // (group + 2))
        for row in table:
            states, room, tail, tail_room, num_shared, _, start, num_new, length = row
            shared = numba.carray(pointer(states), (layer + 1, num_states, room, dim), float32)
            if tail == 0:
                attend_to_row(qkv, start, shared, layer, length, out[start : start + num_new])
            else:
                own = numba.carray(pointer(tail), (layer + 1, num_states, tail_room, dim), float32)
                attend_to_branch(qkv, start, shared, own, num_shared, layer, length, out[start])

    return attend
