"""Keys and values of a batch in one tensor, as transformers' models and GPUs want them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from specray.draft.attention import CachedRow, causal_mask, grouped_attention


class BatchCache(Cache):
    """A working copy of some sessions' keys and values: copied once, written every pass.

    Column p of a row belongs to the row's token at position p, so a batch may be ragged, and a
    rolled-back token is simply overwritten. The last column takes what padding writes; no pass
    reads it. Columns are zero until they are computed: attention masks what it must not see by
    0 * value, and would spread a NaN.
    """

    def __init__(self, rows: Sequence[CachedRow], group: int = 1) -> None:
        """Copies the rows' part of their sessions; in `attend`, `group` heads share a key head."""
        super().__init__(layers=[])
        self._rows = rows
        self._group = group
        num_layers, num_heads, _, dim = rows[0].states.shape
        self._num_columns = max(row.stop for row in rows) + 1
        # [layers, 2 * heads, batch, columns, dim]
        self._kv = rows[0].states.new_zeros(
            num_layers, num_heads, len(rows), self._num_columns, dim
        )
        for index, row in enumerate(rows):
            cached = slice(0, row.num_cached)
            self._kv[:, :, index, cached] = row.states[:, :, cached]
        self._starts = torch.arange(len(rows), device=self._kv.device)[:, None] * self._num_columns
        # Of the pass that runs:
        self._written = self._starts.flatten()  # [rows * queries], in `_kv[layer].flatten(1, 2)`
        self._num_queries = 1
        self._length = 0
        self._mask: Tensor | None = None

    def start_pass(self, positions: Tensor, length: int) -> None:
        """See `AttentionCache`."""
        num_rows, self._num_queries = positions.shape
        columns = positions.where(positions >= 0, self._num_columns - 1)
        self._written = (self._starts[:num_rows] + columns).flatten()
        self._length = length
        self._mask = causal_mask(positions, length, self._group)

    def attend(self, queries: Tensor, states: Tensor, layer: int) -> Tensor:
        """See `AttentionCache`."""
        keys, values = self._append(states, layer)
        by_row = queries.unflatten(0, (-1, self._num_queries))
        return grouped_attention(by_row, keys, values, self._mask)

    def update(
        self,
        key_states: Tensor,  # [rows, heads, queries, dim]
        value_states: Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Writes a layer's new keys and values; returns all of the rows': [rows, heads, length]."""
        states = torch.cat((key_states, value_states), dim=1).transpose(1, 2)
        return self._append(states.flatten(0, 1), layer_idx)

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """Columns that the running pass reads, less the ones it writes."""
        return self._length - self._num_queries

    def store(self) -> None:
        """See `AttentionCache`."""
        for index, row in enumerate(self._rows):
            computed = slice(row.num_cached, row.stop)
            row.states[:, :, computed] = self._kv[:, :, index, computed]

    def _append(self, states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        kv = self._kv[layer]
        kv.flatten(1, 2).index_copy_(1, self._written, states.transpose(0, 1))
        num_rows = len(self._written) // self._num_queries
        keys, values = kv[:, :num_rows, : self._length].transpose(0, 1).chunk(2, dim=1)
        return keys, values
