"""Passes of one token a row, for a batch whose rows all grow by the same column."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specray.distill.row_cache import RowCache
from specray.models.cuda import CudaGraphs, Recorder, Replay

logger = logging.getLogger(__name__)

_COLUMNS = 64  # a recorded pass reads a multiple of so many


class _Recording(NamedTuple):
    hidden: Tensor  # [rows, hidden], the output; the next pass writes there again
    replay: Replay


class Recorders:
    """Makes a recorder for each batch, until one has failed: the next would, too."""

    def __init__(self, make: Callable[[], Recorder] | None) -> None:
        self._make = make

    @classmethod
    def of(cls, device: torch.device) -> "Recorders":
        """CUDA's on a GPU, none elsewhere."""
        return cls((lambda: CudaGraphs().record) if device.type == "cuda" else None)

    def make(self) -> Recorder | None:
        """A recorder, if there is one."""
        return self._make() if self._make is not None else None

    def give_up(self, error: Exception) -> None:
        """One has failed."""
        logger.warning("generation goes on without CUDA graphs, as one failed: %s", error)
        self._make = None


class Decoder:
    """Runs such passes; on a GPU they are recorded, as their launches take longer than they do."""

    def __init__(self, model: Any, cache: RowCache, pads: Tensor, recorders: Recorders) -> None:
        """Takes all rows of a cache.

        Args:
            model: a causal LM on its device.
            cache: of the rows.
            pads: [rows], columns before each row's text.
            recorders: of passes.
        """
        self._model = model
        self._cache = cache
        self._pads = pads
        self._recorders = recorders
        self._record_run = recorders.make()
        self._recordings: dict[int, _Recording] = {}  # by the columns that they read
        self._tokens = torch.zeros(len(pads), dtype=torch.long, device=pads.device)
        self._column = torch.zeros(1, dtype=torch.long, device=pads.device)

    def __call__(self, tokens: Tensor, column: int) -> Tensor:  # [rows, hidden], until the next
        """The next pass.

        Args:
            tokens: [rows], which go into the column.
            column: the first that is free.
        """
        self._tokens.copy_(tokens)
        self._column.fill_(column)
        stop = column + 1
        if self._record_run is None:
            return self._run(stop)
        stop = min(-(-stop // _COLUMNS) * _COLUMNS, self._cache.num_columns)
        try:
            recording = self._recordings.get(stop) or self._record(stop)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError):  # the next batch may be smaller
                self._recorders.give_up(error)
            self._record_run = None
            self._recordings.clear()
            return self._run(stop)
        recording.replay()
        return recording.hidden

    def _record(self, stop: int) -> _Recording:
        shape = len(self._tokens), self._model.get_output_embeddings().weight.shape[1]
        hidden = torch.zeros(shape, dtype=self._model.dtype, device=self._tokens.device)

        def run() -> None:
            hidden.copy_(self._run(stop))

        assert self._record_run is not None
        replay = self._record_run(run)
        self._recordings[stop] = recording = _Recording(hidden, replay)
        return recording

    def _run(self, stop: int) -> Tensor:
        return run_pass(
            self._model, self._cache, self._tokens[:, None], self._column, self._pads, stop
        )


def run_pass(
    model: Any, cache: RowCache, ids: Tensor, columns: Tensor, pads: Tensor, stop: int
) -> Tensor:  # [rows, hidden]
    """Computes some tokens of each row.

    Args:
        model: a causal LM.
        cache: of the selected rows; takes the tokens' keys and values.
        ids: [rows, tokens].
        columns: [tokens], which they go into.
        pads: [rows], columns before each row's text.
        stop: columns that are read; later ones than the tokens' own are masked.

    Returns:
        What the head is given for each row's last token.
    """
    read = torch.arange(stop, device=pads.device)
    mask = (read >= pads[:, None, None]) & (read <= columns[:, None])
    # Padding attends to itself: a row without any key is NaN, and NaN spreads.
    mask |= read == columns[:, None]
    cache.start_pass(columns, stop)
    output = model.base_model(
        input_ids=ids,
        attention_mask=mask[:, None],
        position_ids=(columns - pads[:, None]).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
    )
    return output.last_hidden_state[:, -1].clone()  # not a view that keeps all tokens' alive
