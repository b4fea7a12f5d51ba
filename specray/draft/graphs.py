"""Passes of a few tokens that are recorded once and replayed, as CUDA graphs.

A small draft's kernels take a GPU less time than their launches take the CPU. So a pass is recorded
with the draw of its tokens, and puts those where the next pass reads them: of a whole proposal the
CPU writes what the first pass starts from, and reads what all have drawn. A recording is of fixed
shapes and addresses: batches are padded to a few shapes, and their rows are found by a table.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specray.config import ModelDraftConfig
from specray.draft.addressed_cache import ENTRY, AddressedCache, Attend, entry
from specray.draft.attention import NewTokens
from specray.draft.decoding import Batch, Decoded, Decoder, Draw, PlainDecoder, unpacked
from specray.draft.language_model import LanguageModel
from specray.draft.llama import LlamaPass
from specray.models.cuda import CudaGraphs, Recorder, Replay
from specray.sampling.truncation import BatchSampling

logger = logging.getLogger(__name__)

_MOST_QUERIES = 2  # per row: after a commit its added token, and the one that was drafted last
_MOST_ROWS = 128  # that are recorded
# Uses until a shape is recorded: on an H200 that takes as long as replays save in some four, so
# what is recorded and soon dropped costs at most twice what is best, as with skis, to rent or buy.
_RECORD_AT = 4
_MOST_RECORDINGS = 64  # the latest used; each takes some memory of the device

_SIZES = [_MOST_ROWS * size for size in (ENTRY, 1, 1, _MOST_QUERIES, _MOST_QUERIES, 2, 1, 1, 1)]
_NUM_INPUTS = sum(_SIZES)  # int64, of all `_Inputs` together


class _Shape(NamedTuple):
    rows: int
    queries: int  # new tokens of each row
    has_distributions: bool


class _Inputs(NamedTuple):
    """What the CPU writes before a proposal and recordings read, of `_MOST_ROWS` rows."""

    table: Any  # [rows, ENTRY] int64
    fed_ids: Any  # [rows] int64, of a pass with one token in each row; each pass writes the next's
    fed_positions: Any  # [rows] int64, likewise
    token_ids: Any  # [rows * _MOST_QUERIES] int64, of a pass with several
    positions: Any  # [rows * _MOST_QUERIES] int64
    spans: Any  # [rows, 2] int64, of these
    top_k: Any  # [rows] int64
    temperature: Any  # [rows] float32
    top_p: Any  # [rows] float32


class _Recording(NamedTuple):
    outputs: list[Tensor]  # one, see `Draw`; the next replay writes there again
    replay: Replay


def make_decoder(
    model: LanguageModel, config: ModelDraftConfig, generator: torch.Generator
) -> Decoder:
    """One that records its passes where that is possible and wanted; see `PlainDecoder`."""
    if config.cuda_graphs and isinstance(model, LlamaPass) and model.attend is not None:
        from specray.draft.triton_draw import draw  # Triton, which a CPU lacks

        return GraphedDecoder(model, model.attend, draw, config.support, generator)
    return PlainDecoder(model, config.support, generator)


class GraphedDecoder:
    """A `Decoder` on a GPU that replays its short passes and computes the others one by one.

    Exactness: every replay draws with randomness that nothing else has used, as the generator goes
    on with each; see `CudaGraphs`.
    """

    def __init__(
        self,
        model: LanguageModel,
        attend: Attend,
        draw: Draw,
        support: int,
        generator: torch.Generator,
        record: Recorder | None = None,
    ) -> None:
        """Allocates what recordings read.

        Args:
            model: one that computes with its cache's `attend` only.
            attend: what its cache computes with.
            draw: what its tokens are drawn with.
            support: most tokens that a distribution keeps.
            generator: randomness, on the model's device.
            record: CUDA's if left out.
        """
        self._plain = PlainDecoder(model, support, generator)
        self._model, self._attend, self._draw = model, attend, draw
        self._support, self._generator = support, generator
        device = torch.device(model.device)
        is_gpu = device.type == "cuda"
        self._on_cpu = torch.zeros(_NUM_INPUTS, dtype=torch.long, pin_memory=is_gpu)
        self._on_device = torch.zeros(_NUM_INPUTS, dtype=torch.long, device=device)
        self._written = _views(self._on_cpu.numpy(), np.float32)
        self._read = _views(self._on_device, torch.float32)
        rows = torch.arange(_MOST_ROWS, device=device)
        self._one_each = torch.stack((rows, rows + 1), dim=1)  # spans of a pass that was fed
        self._record_run = record or CudaGraphs(generator).record
        self._recordings: dict[_Shape, _Recording] = {}  # the latest used last
        self._num_met: Counter[_Shape] = Counter()  # without a recording, or since it was dropped
        self._can_record = True
        if is_gpu:
            try:
                self._compile()
            except Exception as error:  # noqa: BLE001  # Triton's are of many kinds
                self._give_up(error)

    @torch.inference_mode()
    def decode(self, batch: Batch) -> Decoded:
        """See `Decoder`."""
        queries = max(len(token_ids) for token_ids in batch.token_ids)
        if queries > _MOST_QUERIES or len(batch.rows) > _MOST_ROWS or batch.num_scored:
            return self._plain.decode(batch)
        nums_rows = [sum(depth > step for depth in batch.depths) for step in range(batch.depths[0])]
        has_distributions = batch.draws_from_distributions
        shapes = [
            _Shape(_rounded_up(num_rows), 1 if step else queries, has_distributions)
            for step, num_rows in enumerate(nums_rows)
        ]
        recordings = self._recordings_of(shapes)
        if recordings is None:
            return self._plain.decode(batch)
        self._write(batch, queries)
        steps = []
        for recording, num_rows in zip(recordings, nums_rows, strict=True):
            recording.replay()
            steps.append(recording.outputs[0][:num_rows].clone())
        return unpacked(steps)

    def _write(self, batch: Batch, queries: int) -> None:
        """Puts a batch, whose first pass computes so many tokens of each row, where it is read."""
        num_rows, to = len(batch.rows), self._written
        self._on_cpu.zero_()  # rows that are none stop before they begin
        to.table[:num_rows] = [entry(row) for row in batch.rows]
        to.top_k[:num_rows] = [sampling.top_k for sampling in batch.samplings]
        to.temperature[:num_rows] = [sampling.temperature for sampling in batch.samplings]
        to.top_p[:num_rows] = [sampling.top_p for sampling in batch.samplings]
        ends = np.array(
            [
                row.num_cached + len(ids)
                for row, ids in zip(batch.rows, batch.token_ids, strict=True)
            ]
        )
        if queries == 1:
            to.fed_ids[:num_rows] = [token_ids[0] for token_ids in batch.token_ids]
            to.fed_positions[:num_rows] = ends - 1
        else:  # padded on the left, by what belongs to no row's span
            padding = [queries - len(token_ids) for token_ids in batch.token_ids]
            to.token_ids[: num_rows * queries] = list(
                chain.from_iterable(
                    (*[0] * num, *token_ids)
                    for num, token_ids in zip(padding, batch.token_ids, strict=True)
                )
            )
            to.positions[: num_rows * queries] = (ends[:, None] + np.arange(-queries, 0)).ravel()
            spans = np.arange(num_rows)[:, None] * queries
            to.spans[:num_rows] = spans + np.stack((padding, np.full(num_rows, queries)), axis=1)
        # What reads the CPU's part has been waited for by the one before.
        self._on_device.copy_(self._on_cpu, non_blocking=True)

    def _recordings_of(self, shapes: Sequence[_Shape]) -> list[_Recording] | None:
        """One for each; None until all were met so often that their recordings would have paid."""
        if not self._can_record:
            return None
        missing = [shape for shape in shapes if shape not in self._recordings]
        self._num_met.update(set(missing))
        if any(self._num_met[shape] < _RECORD_AT for shape in missing):
            return None
        try:
            needed = {
                shape: self._recordings.get(shape) or self._record(shape)
                for shape in dict.fromkeys(shapes)
            }
        except torch.OutOfMemoryError:  # now; these must pay anew
            for shape in missing:
                del self._num_met[shape]
            return None
        except Exception as error:  # noqa: BLE001  # CUDA's or Triton's, and all cost speed only
            self._give_up(error)
            return None
        for shape, recording in needed.items():
            self._recordings.pop(shape, None)
            self._recordings[shape] = recording
        while len(self._recordings) > max(_MOST_RECORDINGS, len(needed)):
            dropped = next(iter(self._recordings))
            del self._recordings[dropped], self._num_met[dropped]
        return [needed[shape] for shape in shapes]

    def _give_up(self, error: Exception) -> None:
        logger.warning("the draft runs without CUDA graphs, as one failed: %r", error)
        self._can_record = False
        self._recordings.clear()

    def _record(self, shape: _Shape) -> _Recording:
        run, outputs = self._computation(shape)
        self._on_device.zero_()  # no rows: what is computed while recording is written nowhere
        return _Recording(outputs, self._record_run(run))

    @torch.inference_mode()
    def _compile(self) -> None:
        """Runs what else would be compiled, for seconds, when the first recordings are made."""
        for num_rows in (1, _MOST_ROWS):
            for has_distributions in (False, True):
                run, _ = self._computation(_Shape(num_rows, 1, has_distributions))
                run()

    def _computation(self, shape: _Shape) -> tuple[Callable[[], None], list[Tensor]]:
        """A pass on what has been written, and where it leaves what it has drawn."""
        num_rows, num_tokens = shape.rows, shape.rows * shape.queries
        read = _Inputs._make(part[:num_rows] for part in self._read)
        if shape.queries == 1:
            token_ids, positions = read.fed_ids, read.fed_positions
            spans = self._one_each[:num_rows]
        else:
            token_ids, positions = (
                part[:num_tokens] for part in (self._read.token_ids, self._read.positions)
            )
            spans = read.spans
        counts = [shape.queries] * num_rows
        new = NewTokens(token_ids, positions, counts, counts)
        _, kv_heads, _ = self._model.layout
        cache = AddressedCache(read.table, kv_heads, self._attend, spans)
        sampling = BatchSampling(
            read.temperature, read.top_k, read.top_p, has_sampled=shape.has_distributions
        )
        names = self._model.head_token_ids
        outputs: list[Tensor] = []

        def run() -> None:
            logits = self._model.next_logits(new, cache)
            drawn = self._draw(logits, sampling, self._support, self._generator, names)
            read.fed_ids.copy_(drawn[:, 0])
            torch.add(new.last(positions), 1, out=read.fed_positions)
            outputs[:] = [drawn]

        return run, outputs


def _views(numbers: Any, float32: Any) -> _Inputs:
    """Parts of an array or a tensor of `_NUM_INPUTS` int64.

    Args:
        numbers: of which parts are viewed.
        float32: the library's type.
    """
    ends = list(accumulate(_SIZES))
    parts = [numbers[end - size : end] for size, end in zip(_SIZES, ends, strict=True)]
    inputs = _Inputs._make(parts)
    return inputs._replace(
        table=inputs.table.reshape(_MOST_ROWS, ENTRY),
        spans=inputs.spans.reshape(_MOST_ROWS, 2),
        temperature=inputs.temperature.view(float32)[:_MOST_ROWS],
        top_p=inputs.top_p.view(float32)[:_MOST_ROWS],
    )


def _rounded_up(number: int) -> int:
    """To a multiple of a quarter of the power of two below it: few shapes, and little padding."""
    step = max(1, 1 << max(0, number.bit_length() - 3))
    return -(-number // step) * step
