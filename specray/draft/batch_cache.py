"""A batch's keys and values during one proposal, as transformers' models see them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from specray.draft.kv_pool import BLOCK_TOKENS, KvPool


class CachedRow(NamedTuple):
    """Where a session's keys and values lie, and how far they go."""

    blocks: list[int]
    num_cached: int  # tokens whose keys and values are in the pool
    stop: int  # tokens there will be after this proposal


class BatchCache(Cache):
    """A working copy of some sessions' part of the pool: gathered once, written every pass.

    Column p of a row belongs to the row's token at position p, so a batch may be ragged, and a
    rolled-back token is simply overwritten. The last column takes what padding writes; no pass
    reads it.
    """

    def __init__(self, pool: KvPool, rows: list[CachedRow]) -> None:
        super().__init__(layers=[])
        self._pool = pool
        self._rows = rows
        self._trash = max(row.stop for row in rows)
        slots = self._gathered_slots()  # [batch, columns]
        gathered = pool.kv.index_select(1, slots.flatten())
        self._kv = gathered.unflatten(1, slots.shape)  # [layers, batch, columns, 2, heads, dim]
        self._row_ids = torch.arange(len(rows), device=slots.device).unsqueeze(1)
        self._columns = slots[:, :0]  # of the pass that runs: [rows, queries]
        self._length = 0

    def start_pass(self, positions: Tensor, length: int) -> None:
        """Sets where the next pass writes.

        Args:
            positions: [rows, queries] of its tokens, for the first rows; negative is padding.
            length: columns that it reads.
        """
        self._columns = positions.where(positions >= 0, self._trash)
        self._length = length

    def update(
        self,
        key_states: Tensor,  # [rows, heads, queries, dim]
        value_states: Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Writes a layer's new keys and values; returns all of the rows': [rows, heads, length]."""
        num_rows = len(key_states)
        layer = self._kv[layer_idx, :num_rows]
        new = torch.stack((key_states, value_states), dim=3)  # [rows, heads, queries, 2, dim]
        layer[self._row_ids[:num_rows], self._columns] = new.permute(0, 2, 3, 1, 4)
        keys, values = layer[:, : self._length].unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """Columns that the running pass reads, less the ones it writes."""
        return self._length - self._columns.shape[1]

    def store(self) -> None:
        """Copies what the passes computed back into the pool."""
        device = self._kv.device
        written = [
            (row_id, position)
            for row_id, row in enumerate(self._rows)
            for position in range(row.num_cached, row.stop)
        ]
        slots = [
            slot
            for row in self._rows
            for slot in KvPool.slots(row.blocks, row.num_cached, row.stop)
        ]
        if written:
            row_ids, positions = torch.tensor(written, device=device).unbind(1)
            computed = self._kv[:, row_ids, positions]
            self._pool.kv.index_copy_(1, torch.tensor(slots, device=device), computed)

    def _gathered_slots(self) -> Tensor:
        """For each row the slots of its blocks, then of the empty block; one column to spare."""
        num_blocks = self._trash // BLOCK_TOKENS + 1
        table = []
        for row in self._rows:
            held = row.blocks[: -(-row.num_cached // BLOCK_TOKENS)]
            table.append(held + [0] * (num_blocks - len(held)))
        blocks = torch.tensor(table, device=self._pool.kv.device).unsqueeze(2)
        within = torch.arange(BLOCK_TOKENS, device=blocks.device)
        return (blocks * BLOCK_TOKENS + within).flatten(1)
