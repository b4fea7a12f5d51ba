"""A model that takes longer than it does: experiments with drafts that this machine lacks."""

import time
from collections.abc import Sequence

from torch import Tensor

from specray.draft.attention import AttentionCache, CachedRow, NewTokens
from specray.draft.decoding import Batch, Decoded, Decoder
from specray.draft.language_model import LanguageModel
from specray.draft.slowness import Slowness


class SlowedDecoder:
    """A `Decoder` whose passes last at least as long as asked, together; the rest of it sleeps."""

    def __init__(self, decoder: Decoder, slowness: Slowness) -> None:
        self._decoder = decoder
        self._slowness = slowness

    def decode(self, batch: Batch) -> Decoded:
        """The decoder's own, not before its time."""
        due_s = time.monotonic() + batch.depths[0] * self._slowness.pass_ms / 1e3
        decoded = self._decoder.decode(batch)
        time.sleep(max(0.0, due_s - time.monotonic()))
        return decoded


class SlowedModel:
    """A `LanguageModel` whose passes last at least as long as asked; the rest of it sleeps."""

    def __init__(self, model: LanguageModel, slowness: Slowness) -> None:
        self._model = model
        self._slowness = slowness
        self.device = model.device
        self.dtype = model.dtype
        self.vocab_size = model.vocab_size
        self.max_positions = model.max_positions
        self.layout = model.layout
        self.copies_rows = model.copies_rows
        self.head_token_ids = model.head_token_ids

    def make_cache(self, rows: Sequence[CachedRow]) -> AttentionCache:
        """The model's own."""
        return self._model.make_cache(rows)

    def next_logits(self, new: NewTokens, cache: AttentionCache) -> Tensor:  # [rows, columns]
        """The model's own, not before its time."""
        due_s = time.monotonic() + self._slowness.pass_ms / 1e3
        logits = self._model.next_logits(new, cache)
        time.sleep(max(0.0, due_s - time.monotonic()))
        return logits
