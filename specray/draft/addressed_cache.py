"""Keys and values where they lie, for a GPU: kernels read their addresses from a table.

Nothing is copied and no row is as long as another, so what a pass launches depends only on how many
rows and tokens it has.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from specray.draft.attention import CachedRow, NewTokens

ENTRY = 6
"""Numbers of a row in the table: address and room of `states`, the same of `tail`, `num_shared`
(where there is no tail all of the room), and `stop`."""


class Attend(Protocol):
    """Writes a layer's new keys and values, and attends to all up to each query's own."""

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        spans: Tensor,
        table: Tensor,
        layer: int,
        kv_heads: int,
        most_new: int,
    ) -> Tensor:
        """What the tokens attend to, [tokens, heads * dim]; anything for those of no row.

        Args:
            qkv: [tokens, heads + 2 * kv_heads, dim], contiguous: queries, then keys, then values.
            positions: [tokens] int64.
            spans: [rows, 2] int64: the first of each row's tokens, and the end of them.
            table: [rows, ENTRY] int64. Of a row whose tokens go beyond its stop nothing is read
                or written but what lies in `qkv`.
            layer: its index.
            kv_heads: how many keys a token has.
            most_new: tokens that a row has at most.
        """
        ...


class AddressedCache:
    """See `AttentionCache`; what is computed is part of the sessions at once."""

    def __init__(
        self, table: Tensor, kv_heads: int, attend: Attend, spans: Tensor | None = None
    ) -> None:
        """Takes where the rows lie.

        Args:
            table: [rows, ENTRY] int64, see `entry`.
            kv_heads: how many keys a token has.
            attend: kernels for the device.
            spans: [rows, 2] int64 of the rows' tokens; by default those of each pass.
        """
        self._table = table
        self._kv_heads = kv_heads
        self._attend = attend
        self._spans = spans
        # Of the pass that runs:
        self._new: NewTokens | None = None
        self._its_spans = table
        self._most_new = 0

    @classmethod
    def of(cls, rows: Sequence[CachedRow], attend: Attend) -> "AddressedCache":
        """The cache of a batch that is in no table yet."""
        states = rows[0].states
        table = torch.tensor([entry(row) for row in rows], device=states.device)
        return cls(table, states.shape[1] // 2, attend)

    def start_pass(self, new: NewTokens) -> NewTokens:
        """See `AttentionCache`."""
        self._new, self._most_new = new, max(new.counts)
        if self._spans is not None:
            self._its_spans = self._spans
        else:
            bounds = list(pairwise(accumulate(new.counts, initial=0)))
            self._its_spans = torch.tensor(bounds, device=self._table.device)
        return new

    def attend(self, qkv: Tensor, layer: int) -> Tensor:
        """See `AttentionCache`."""
        assert self._new is not None
        spans = self._its_spans
        table = self._table[: len(spans)]
        return self._attend(
            qkv, self._new.positions, spans, table, layer, self._kv_heads, self._most_new
        )

    def store(self) -> None:
        """See `AttentionCache`; all has been written in place."""


def entry(row: CachedRow) -> tuple[int, ...]:
    """A row of the table."""
    room = row.states.shape[2]
    own = (
        (0, 0, room)
        if row.tail is None
        else (row.tail.data_ptr(), row.tail.shape[2], row.num_shared)
    )
    return row.states.data_ptr(), room, *own, row.stop
