"""How a draft's layers reach the keys and values of the sessions in a batch."""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

from torch import Tensor


class CachedRow(NamedTuple):
    """A session's keys and values, and how far they go; or those of a branch of it.

    A branch shares its session's first tokens, which it only reads, and has the rest to itself.
    The memory is contiguous.
    """

    states: Tensor  # [layers, 2 * kv_heads, tokens, dim]: the heads' keys, then their values
    num_cached: int  # tokens that have been computed
    stop: int  # tokens there will be after this proposal
    tail: Tensor | None = None  # a branch's own, shaped as `states`
    num_shared: int = 0  # a branch's tokens that lie in `states`


class NewTokens(NamedTuple):
    """What a forward pass computes: the next tokens of a batch's first rows, row after row."""

    token_ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64, consecutive in each row; negative is padding
    counts: Sequence[int]  # how many are each row's
    lengths: Sequence[int]  # each row's, the new ones included
    num_scored: Sequence[int] = ()  # after how many of each row's last logits are asked for; or 1

    def last(self, tensor: Tensor) -> Tensor:
        """Each row's last entry of a tensor that has one for each token."""
        if len(tensor) == len(self.counts):
            return tensor
        if len(set(self.counts)) == 1:  # an index would be copied to the device
            return tensor.unflatten(0, (len(self.counts), -1))[:, -1]
        return tensor[[stop - 1 for stop in accumulate(self.counts)]]

    def scored(self, tensor: Tensor) -> Tensor:
        """The entries of a tensor that has one for each token, after which logits are asked for."""
        if not self.num_scored:
            return self.last(tensor)
        ends = accumulate(self.counts)
        places = [range(end - num, end) for end, num in zip(ends, self.num_scored, strict=True)]
        return tensor[list(chain.from_iterable(places))]

    def followed_by(self, token_ids: Tensor) -> "NewTokens":
        """The next pass: one more token for each of the first rows."""
        num_rows = len(token_ids)
        positions = self.last(self.positions)[:num_rows] + 1
        lengths = [length + 1 for length in self.lengths[:num_rows]]
        return NewTokens(token_ids, positions, [1] * num_rows, lengths)


class AttentionCache(Protocol):
    """The keys and values of a batch during one proposal."""

    def start_pass(self, new: NewTokens) -> NewTokens:
        """Announces a pass; returns its tokens, padded on the left if rows must be alike."""
        ...

    def attend(self, qkv: Tensor, layer: int) -> Tensor:
        """Takes a layer's new keys and values, and attends to all up to each query's own.

        Args:
            qkv: [tokens, heads + 2 * kv_heads, dim]: the heads' queries, then keys, then values.
            layer: its index.

        Returns:
            [tokens, heads * dim]; anything where padded.
        """
        ...

    def store(self) -> None:
        """Makes what was computed part of the sessions."""
        ...
