"""Keys and values of a batch in one tensor, as transformers' models and GPUs want them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache

from specray.draft.attention import CachedRow, NewTokens


class BatchCache(Cache):
    """A working copy of some sessions' keys and values: copied once, written every pass.

    Column p of a row belongs to the row's token at position p, so a batch may be ragged, and a
    rolled-back token is simply overwritten. The last column takes what padding writes; no pass
    reads it. Columns are zero until they are computed: attention masks what it must not see by
    0 * value, and would spread a NaN.
    """

    def __init__(self, rows: Sequence[CachedRow]) -> None:
        """Copies the rows' part of their sessions."""
        super().__init__(layers=[])
        self._rows = rows
        num_layers, num_heads, _, dim = rows[0].states.shape
        self._num_columns = max(row.stop for row in rows) + 1
        self.kv = rows[0].states.new_zeros(num_layers, num_heads, len(rows), self._num_columns, dim)
        for index, row in enumerate(rows):
            num_shared = row.num_cached if row.tail is None else row.num_shared
            self.kv[:, :, index, :num_shared] = row.states[:, :, :num_shared]
            if row.tail is not None:
                own = row.tail[:, :, : row.num_cached - num_shared]
                self.kv[:, :, index, num_shared : row.num_cached] = own
        row_indices = torch.arange(len(rows), device=self.kv.device)
        self._starts = row_indices[:, None] * self._num_columns
        # Of the pass that runs:
        self._written = self._starts  # [rows, queries], in `kv[layer].flatten(1, 2)`
        self._length = 0
        self.mask = torch.empty(0)  # which columns each query sees, [rows, queries, length]

    def start_pass(self, new: NewTokens) -> NewTokens:
        """See `AttentionCache`."""
        new = padded(new)
        positions = new.positions.view(len(new.counts), -1)
        columns = positions.where(positions >= 0, self._num_columns - 1)
        self._written = self._starts[: len(positions)] + columns
        self._length = max(new.lengths)
        # Padding sees the first column: attention to nothing would be NaN, and spread.
        seen = torch.arange(self._length, device=positions.device)
        self.mask = seen <= positions.clamp(min=0).unsqueeze(2)
        return new

    def attend(self, qkv: Tensor, layer: int) -> Tensor:
        """See `AttentionCache`. Heads that share a key head count as further queries of it."""
        num_rows, num_queries = self._written.shape
        kv_heads = self.kv.shape[1] // 2
        queries, states = qkv.split((qkv.shape[1] - 2 * kv_heads, 2 * kv_heads), dim=1)
        keys, values = self._append(states, layer)
        shape = (num_rows, num_queries, kv_heads, -1, queries.shape[2])
        grouped = queries.reshape(shape).transpose(1, 2)  # [rows, kv_heads, queries, group, dim]
        mask = self.mask[:, None, :, None].expand(-1, 1, -1, grouped.shape[3], -1)
        attended = scaled_dot_product_attention(
            grouped.flatten(2, 3), keys, values, attn_mask=mask.flatten(2, 3)
        )
        return attended.view_as(grouped).transpose(1, 2).flatten(2).flatten(0, 1)

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
        return self._length - self._written.shape[1]

    def store(self) -> None:
        """See `AttentionCache`."""
        for index, row in enumerate(self._rows):
            computed = self.kv[:, :, index, row.num_cached : row.stop]
            if row.tail is None:
                row.states[:, :, row.num_cached : row.stop] = computed
            else:
                own = slice(row.num_cached - row.num_shared, row.stop - row.num_shared)
                row.tail[:, :, own] = computed

    def _append(self, states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Writes states [rows * queries, 2 * heads, dim]."""
        kv = self.kv[layer]
        kv.flatten(1, 2).index_copy_(1, self._written.flatten(), states.transpose(0, 1))
        keys, values = kv[:, : len(self._written), : self._length].transpose(0, 1).chunk(2, dim=1)
        return keys, values


def padded(new: NewTokens) -> NewTokens:
    """The same with as many tokens in each row, on its left."""
    longest = max(new.counts)
    if min(new.counts) == longest:
        return new
    token_ids, positions = (
        pad_sequence(
            tensor.split(list(new.counts)), True, padding_value=filling, padding_side="left"
        ).flatten()
        for tensor, filling in ((new.token_ids, 0), (new.positions, -1))
    )
    counts = [longest] * len(new.counts)
    return new._replace(token_ids=token_ids, positions=positions, counts=counts)
