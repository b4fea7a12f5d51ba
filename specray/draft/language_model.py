"""What drafting asks of a model."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specray.draft.attention import AttentionCache, CachedRow, NewTokens
from specray.draft.kv_pool import KvLayout


class LanguageModel(Protocol):
    """A decoder whose layers all attend to everything before, one forward pass at a time."""

    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    max_positions: int
    layout: KvLayout
    copies_rows: bool  # whether a cache holds a copy of its rows' keys and values
    head_token_ids: Tensor | None  # [columns] int64, the tokens that logits are for; None: all

    def make_cache(self, rows: Sequence[CachedRow]) -> AttentionCache:
        """The keys and values of a batch, for the passes of one proposal."""
        ...

    def next_logits(self, new: NewTokens, cache: AttentionCache) -> Tensor:
        """Logits of the token after each row's last one, or last few: [scored, columns].

        Args:
            new: the tokens to compute.
            cache: holds what comes before; takes their keys and values.
        """
        ...
