"""Attention over a draft's sessions, each of which has its own keys and values."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional


class CachedRow(NamedTuple):
    """A session's keys and values, and how far they go."""

    states: Tensor  # [layers, 2 * kv_heads, tokens, dim]: the heads' keys, then their values
    num_cached: int  # tokens that have been computed
    stop: int  # tokens there will be after this proposal


class AttentionCache(Protocol):
    """The keys and values of a batch during one proposal."""

    def start_pass(self, positions: Tensor, length: int) -> None:
        """Announces a pass over the first rows of the batch.

        Args:
            positions: [rows, queries] of its tokens, consecutive in each row; negative is padding.
            length: one more than the largest position.
        """
        ...

    def attend(self, queries: Tensor, states: Tensor, layer: int) -> Tensor:
        """Takes a layer's new keys and values, and attends to all up to each query's own.

        Args:
            queries: [rows * queries, heads, dim].
            states: [rows * queries, 2 * kv_heads, dim], the heads' keys and then their values.
            layer: its index.

        Returns:
            [rows * queries, heads * dim]; anything where padded.
        """
        ...

    def store(self) -> None:
        """Makes what was computed part of the sessions."""
        ...


def causal_mask(positions: Tensor, length: int, group: int) -> Tensor | None:
    """Which of `length` columns each query sees, [rows, 1, queries * group, length].

    None if it is all of them.

    Args:
        positions: [rows, queries]; negative is padding, which sees the first column: attention to
            nothing would be NaN, and spread.
        length: one more than the largest position.
        group: query heads to each key head; see `grouped_attention`.
    """
    num_rows, num_queries = positions.shape
    if num_rows == num_queries == 1:
        return None
    columns = torch.arange(length, device=positions.device)
    mask = columns <= positions.clamp(min=0)[:, None, :, None]
    return mask.repeat_interleave(group, dim=2) if num_queries > 1 else mask


def grouped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention where several query heads share a key head, without repeating keys.

    The heads of a group count as further queries.

    Args:
        queries: [rows, queries, heads, dim].
        keys: [rows, kv_heads, length, dim].
        values: [rows, kv_heads, length, dim].
        mask: [rows, 1, queries * group, length] or, for single queries, [rows, 1, 1, length].

    Returns:
        [rows * queries, heads * dim].
    """
    num_rows, num_queries, num_heads, dim = queries.shape
    kv_heads = keys.shape[1]
    grouped = queries.view(num_rows, num_queries, kv_heads, -1, dim).transpose(1, 2).flatten(2, 3)
    out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    by_query = out.view(num_rows, kv_heads, num_queries, -1, dim).transpose(1, 2)
    return by_query.reshape(num_rows * num_queries, num_heads * dim)


class _RowPass(NamedTuple):
    """One row's part of a pass; views of its memory by layer."""

    new: tuple[Tensor, ...]  # [2 * kv_heads, unpadded queries, dim] each
    seen: tuple[Tensor, ...]  # [2, 1, kv_heads, length, dim] each
    mask: Tensor | None


class InPlaceCache:
    """Attends row by row to keys and values where they lie: what a CPU does best."""

    def __init__(self, rows: Sequence[CachedRow], group: int) -> None:
        self._rows = rows
        self._group = group
        self._pass: list[_RowPass] = []

    def start_pass(self, positions: Tensor, length: int) -> None:  # noqa: ARG002
        """See `AttentionCache`; each row has its own length."""
        self._pass = [
            self._row_pass(row.states, positions[index : index + 1])
            for index, row in enumerate(self._rows[: len(positions)])
        ]

    def attend(self, queries: Tensor, states: Tensor, layer: int) -> Tensor:
        """See `AttentionCache`."""
        num_rows = len(self._pass)
        outs = []
        for row, new_queries, new_states in zip(
            self._pass, queries.chunk(num_rows), states.chunk(num_rows), strict=True
        ):
            target = row.new[layer]
            target.copy_(new_states[-target.shape[1] :].transpose(0, 1))
            keys, values = row.seen[layer].unbind(0)
            outs.append(grouped_attention(new_queries.unsqueeze(0), keys, values, row.mask))
        return outs[0] if num_rows == 1 else torch.cat(outs)

    def store(self) -> None:
        """See `AttentionCache`; all has been written in place."""

    def _row_pass(self, states: Tensor, positions: Tensor) -> _RowPass:
        start, length = int(positions[0, 0]), int(positions[0, -1]) + 1
        seen = states[:, :, :length].unflatten(1, (2, 1, -1))
        return _RowPass(
            states[:, :, max(start, 0) : length].unbind(0),
            seen.unbind(0),
            causal_mask(positions, length, self._group),
        )
