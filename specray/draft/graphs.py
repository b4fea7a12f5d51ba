"""Passes of a few tokens that are recorded once and replayed, as CUDA graphs.

A small draft's kernels take a GPU less time than their launches take the CPU. A recording is of
fixed shapes and addresses: batches are padded to a few shapes and lie in the same memory.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specray.draft.attention import AttentionCache, CachedRow, NewTokens
from specray.draft.batch_cache import BatchCache, padded
from specray.draft.language_model import LanguageModel
from specray.models.cuda import CudaGraphs, Recorder, Replay

logger = logging.getLogger(__name__)

_LEAST_COLUMNS = 256
_MOST_QUERIES = 2  # per row: after a commit its added token, and the one that was drafted last
_MOST_ROWS = 128  # that are recorded
# Uses until a shape is recorded: on an H200 that takes as long as replays save in some eight, so
# what is recorded and soon dropped costs at most twice what is best, as with skis, to rent or buy.
_RECORD_AT = 8
_MOST_RECORDINGS = 64  # the latest used; each takes some memory of the device


class _Shape(NamedTuple):
    rows: int
    columns: int
    queries: int  # new tokens of each row


class _Recording(NamedTuple):
    token_ids: Tensor  # [rows * queries], the input
    positions: Tensor  # [rows * queries], likewise
    cache: BatchCache  # whose indices the recording reads
    replay: Replay


class GraphedModel:
    """A model on a GPU that replays its short passes and computes the others as it did.

    It has one cache at a time: whoever makes one must be done with the one before.
    """

    copies_rows = True

    def __init__(
        self, model: LanguageModel, most_tokens: int, record: Recorder | None = None
    ) -> None:
        """Allocates the caches' memory.

        Args:
            model: one that computes with its cache's `attend` only, and copies rows.
            most_tokens: that the memory is for, padding included; larger batches are computed as
                the model does.
            record: CUDA's if left out.
        """
        self._model = model
        self.device, self.dtype = model.device, model.dtype
        self.vocab_size, self.max_positions = model.vocab_size, model.max_positions
        self.layout, self.head_token_ids = model.layout, model.head_token_ids
        self._most_tokens = most_tokens
        num_layers, num_heads, dim = model.layout
        size = num_layers * 2 * num_heads * most_tokens * dim
        self._memory = torch.empty(size, dtype=model.dtype, device=model.device)
        self._output = torch.empty(0)  # [most rows, columns of the head], of all recordings
        self._record_run = record or CudaGraphs().record
        self._recordings: dict[_Shape, _Recording] = {}  # the latest used last
        self._num_met: Counter[_Shape] = Counter()  # without a recording, or since it was dropped
        self._can_record = True
        self._cache: BatchCache | None = None  # the latest, if it lies in the memory

    def make_cache(self, rows: Sequence[CachedRow]) -> AttentionCache:
        """In the memory that recordings use, if the batch fits there."""
        self._cache = None
        num_rows, num_columns = len(rows), max(row.stop for row in rows) + 1
        if not self._can_record or num_rows * num_columns > self._most_tokens:
            return self._model.make_cache(rows)
        # Zeros: attention masks what it must not see by 0 * value, and would spread a NaN.
        shape = _rounded_up(num_rows, 1), _rounded_up(num_columns, _LEAST_COLUMNS)
        if shape[0] > _MOST_ROWS or shape[0] * shape[1] > self._most_tokens:
            return BatchCache(rows, self._kv(num_rows, num_columns).zero_())
        self._cache = BatchCache(rows, self._kv(*shape).zero_())
        return self._cache

    @torch.inference_mode()
    def next_logits(self, new: NewTokens, cache: AttentionCache) -> Tensor:
        """See `LanguageModel`."""
        num_rows, num_queries = len(new.counts), max(new.counts)
        is_long = num_queries > _MOST_QUERIES or bool(new.num_scored)
        if self._cache is None or cache is not self._cache or is_long:
            return self._model.next_logits(new, cache)
        shape = _Shape(self._cache.kv.shape[2], self._cache.kv.shape[3], num_queries)
        recording = self._recording(shape)
        if recording is None:
            return self._model.next_logits(new, cache)
        new = padded(new)
        num_tokens = num_rows * num_queries
        recording.token_ids[:num_tokens] = new.token_ids
        recording.positions.fill_(-1)
        recording.positions[:num_tokens] = new.positions
        recording.replay()
        return self._output[:num_rows].clone()  # the next replay writes there again

    def _kv(self, num_rows: int, num_columns: int) -> Tensor:
        """The beginning of the memory as [layers, 2 * kv_heads, rows, columns, dim]."""
        num_layers, num_heads, dim = self.layout
        shape = torch.Size((num_layers, 2 * num_heads, num_rows, num_columns, dim))
        return self._memory[: shape.numel()].view(shape)

    def _recording(self, shape: _Shape) -> _Recording | None:
        """The shape's; None until it has been met so often that a recording would have paid."""
        recording = self._recordings.pop(shape, None)
        self._num_met[shape] += recording is None
        if self._num_met[shape] < _RECORD_AT:
            return None
        try:
            recording = recording or self._record(shape)
        except RuntimeError as error:
            logger.warning("the draft runs without CUDA graphs, as one failed: %s", error)
            self._can_record = False
            self._recordings.clear()
            self._cache = None
            self._memory = torch.empty(0)  # what is in use stays with its cache
            return None
        self._recordings[shape] = recording
        if len(self._recordings) > _MOST_RECORDINGS:
            dropped = next(iter(self._recordings))
            del self._recordings[dropped], self._num_met[dropped]
        return recording

    def _record(self, shape: _Shape) -> _Recording:
        num_tokens = shape.rows * shape.queries
        token_ids = torch.zeros(num_tokens, dtype=torch.long, device=self.device)
        # Padding, all of it: what is computed while recording is written where nobody reads.
        positions = torch.full_like(token_ids, -1)
        counts, lengths = [shape.queries] * shape.rows, [shape.columns - 1] * shape.rows
        new = NewTokens(token_ids, positions, counts, lengths)
        cache = BatchCache((), self._kv(shape.rows, shape.columns))
        if not len(self._output):
            logits = self._model.next_logits(new, cache)
            self._output = logits.new_empty((_MOST_ROWS, logits.shape[1]))
        output = self._output[: shape.rows]

        def run() -> None:
            output.copy_(self._model.next_logits(new, cache))

        return _Recording(token_ids, positions, cache, self._record_run(run))


def _rounded_up(number: int, least: int) -> int:
    """To a multiple of a quarter of the power of two below it: few shapes, and little padding."""
    number = max(number, least)
    step = max(1, 1 << max(0, number.bit_length() - 3))
    return -(-number // step) * step
