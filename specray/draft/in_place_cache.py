"""Keys and values where they lie, for float32 on a CPU: nothing is copied, no row is padded."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from specray.draft.attention import CachedRow, NewTokens
from specray.draft.kernels import Array, attention, branch_attention


class InPlaceCache:
    """Attends row by row to the sessions' own memory; see `AttentionCache`."""

    def __init__(self, rows: Sequence[CachedRow]) -> None:
        self._rows = [
            _Row(row.states.numpy(), None if row.tail is None else row.tail.numpy(), row.num_shared)
            for row in rows
        ]
        self._kv_heads = rows[0].states.shape[1] // 2
        self._lengths: Sequence[int] = ()  # of the pass that runs, as are the next
        self._bounds: list[tuple[int, int]] = []  # of the rows' tokens

    def start_pass(self, new: NewTokens) -> NewTokens:
        """See `AttentionCache`."""
        self._lengths = new.lengths
        self._bounds = list(pairwise(accumulate(new.counts, initial=0)))
        return new

    def attend(self, qkv: Tensor, layer: int) -> Tensor:
        """See `AttentionCache`; a branch takes one token a pass."""
        num_tokens, num_heads, dim = qkv.shape
        attended = torch.empty(num_tokens, (num_heads - 2 * self._kv_heads) * dim)
        inputs, outputs = qkv.numpy(), attended.numpy()
        group = num_heads // self._kv_heads - 2
        attend_to_row, attend_to_branch = attention(dim, group), branch_attention(dim, group)
        for (states, tail, num_shared), length, (start, stop) in zip(
            self._rows, self._lengths, self._bounds, strict=False
        ):
            if tail is None:
                attend_to_row(inputs, start, states, layer, length, outputs[start:stop])
            else:
                attend_to_branch(
                    inputs, start, states, tail, num_shared, layer, length, outputs[start]
                )
        return attended

    def store(self) -> None:
        """See `AttentionCache`; all has been written in place."""


class _Row(NamedTuple):
    states: Array
    tail: Array | None
    num_shared: int
