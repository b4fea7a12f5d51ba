"""Generation with transformers, for machines without vLLM: whole batches that only shrink."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specray.distill.decoding import Decoder, Recorders, run_pass
from specray.distill.generation import Completion, SampleRequest
from specray.distill.loops import is_looping
from specray.distill.row_cache import RowCache, bytes_per_column
from specray.distill.sampling_rows import Row, draw, uniforms
from specray.models.memory import free_bytes

logger = logging.getLogger(__name__)

_CACHE_SHARE = 0.4  # of free memory: giving rows up copies the others, and passes need some too
_USUAL_COLUMNS = 512  # of a prompt and its answer
_PREFILL_TOKENS = {"cpu": 8192, "cuda": 131072}  # of one forward pass, padding included
_LOOK_FOR_LOOPS_EVERY = 32  # steps
# Share of rows still running below which the others' memory is given up: on a GPU passes are then
# recorded anew.
_COMPACT_AT = {"cpu": 0.85, "cuda": 0.6}


class TransformersGenerator:
    """Continues prompts in batches of similar length."""

    def __init__(
        self,
        model: Any,
        end_ids: frozenset[int],
        num_at_once: int = 128,
        free: Callable[[torch.device], int] = free_bytes,
        recorders: Recorders | None = None,
    ) -> None:
        """Takes the model as it is.

        Args:
            model: a causal LM on its device.
            end_ids: tokens that end an answer.
            num_at_once: most requests that run together; fewer where memory is short.
            free: bytes that a device has left.
            recorders: of passes; CUDA's on a GPU if left out.
        """
        self._model = model.eval()
        self._end_ids = end_ids
        self._most_at_once = num_at_once
        self._free = free
        self._recorders = recorders or Recorders.of(model.device)

    @property
    def num_at_once(self) -> int:
        """As many texts of a usual length as memory has room for."""
        return min(self._most_at_once, self._rows_of(_USUAL_COLUMNS))

    @torch.inference_mode()
    def generate(self, requests: Sequence[SampleRequest], top_k: int) -> list[Completion]:
        """See `Generator`; requests of similar length run together, in any order."""
        if not requests:
            return []
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt))
        completions: dict[int, Completion] = {}
        num_batches = -(-len(order) // self._rows_at_once(requests))
        for part in (rows.tolist() for rows in np.array_split(order, num_batches)):
            asked = [requests[i] for i in part]
            # Not kept in a name: its memory is free again before the next batch takes its own.
            done = _Batch(self._model, asked, self._end_ids, top_k, self._recorders).run()
            completions |= zip(part, done, strict=True)
        return [completions[i] for i in range(len(requests))]

    def _rows_at_once(self, requests: Sequence[SampleRequest]) -> int:
        """As many as memory has room for: a row takes all of its columns from the start."""
        longest = max(len(request.prompt) for request in requests)
        num_columns = longest + max(request.max_tokens for request in requests)
        num_rows = self._rows_of(num_columns)
        if num_rows < min(self._most_at_once, len(requests)):
            logger.info("%d texts at once: memory has room for no more", num_rows)
        return min(self._most_at_once, num_rows)

    def _rows_of(self, num_columns: int) -> int:
        room = int(_CACHE_SHARE * self._free(self._model.device))
        return max(1, room // (num_columns * bytes_per_column(self._model)))


class _Batch:
    """Rows padded on the left, so that every row's next token goes into the same column."""

    def __init__(
        self,
        model: Any,
        requests: list[SampleRequest],
        end_ids: frozenset[int],
        top_k: int,
        recorders: Recorders,
    ) -> None:
        self._model = model
        self._recorders = recorders
        self._requests = requests
        self._width = max(len(request.prompt) for request in requests)
        self._max_tokens = max(request.max_tokens for request in requests)
        numbers = uniforms([request.seed for request in requests], self._max_tokens)
        with model.device:
            self._end_ids = torch.tensor(sorted(end_ids))
            self._temperatures = torch.tensor([request.temperature for request in requests])
            self._top_ps = torch.tensor([request.top_p for request in requests])
            self._limits = torch.tensor([request.max_tokens for request in requests])
            self._may_loop = torch.tensor([not r.may_stop_in_loop for r in requests])
            self._pads = torch.tensor([self._width - len(r.prompt) for r in requests])
            self._numbers = numbers.to(model.device)
            self._held = torch.arange(len(requests))  # rows in memory, some of them at their end
            self._lengths = torch.zeros(len(requests), dtype=torch.long)  # 0 until a row has ended
            shape = len(requests), self._max_tokens
            self._tokens = torch.zeros(shape, dtype=torch.int32)
            self._top_ids = torch.zeros((*shape, top_k), dtype=torch.int32)
            self._top_logprobs = torch.zeros((*shape, top_k), dtype=torch.float16)
        self._cache = RowCache(model, len(requests), self._width + self._max_tokens)

    def run(self) -> list[Completion]:
        """Generates until every row has ended."""
        hidden = self._prefill()
        decode = Decoder(self._model, self._cache, self._pads, self._recorders)
        for count in range(1, self._max_tokens + 1):
            tokens = self._choose(hidden, count - 1)
            going = self._going(tokens, count)
            num_going = int(going.sum())
            if not num_going:
                break
            if num_going < _COMPACT_AT[tokens.device.type] * len(self._held):
                self._cache.keep(going)
                self._held, tokens = self._held[going], tokens[going]
                pads = self._pads[self._held]
                decode = Decoder(self._model, self._cache, pads, self._recorders)
            hidden = decode(tokens, self._width + count - 1)
        return self._collect()

    def _going(self, tokens: Tensor, count: int) -> Tensor:  # [held rows], bool
        """Which of the held rows need more tokens; notes how many the others have."""
        held = self._held
        ended = torch.isin(tokens, self._end_ids) | (self._limits[held] <= count)
        if count % _LOOK_FOR_LOOPS_EVERY == 0:
            ended |= is_looping(self._tokens[held, :count]) & ~self._may_loop[held]
        going = self._lengths[held] == 0
        self._lengths[held[going & ended]] = count
        return going & ~ended

    def _prefill(self) -> Tensor:  # [rows, hidden]
        device = self._model.device
        rows_at_once = max(1, _PREFILL_TOKENS[device.type] // self._width)
        columns = torch.arange(self._width, device=device)
        hidden: list[Tensor] = []
        first = 0
        while first < len(self._requests):
            part = self._requests[first : first + rows_at_once]
            texts = [(0,) * (self._width - len(r.prompt)) + r.prompt for r in part]
            ids = torch.tensor(texts, device=device)
            pads = self._pads[first : first + len(part)]
            self._cache.select(first, len(part))
            try:
                hidden.append(run_pass(self._model, self._cache, ids, columns, pads, self._width))
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                rows_at_once = -(-len(part) // 2)  # what a pass takes depends on the model
                continue
            first += len(part)
        self._cache.select(0, len(self._requests))
        return torch.cat(hidden)

    def _choose(self, hidden: Tensor, index: int) -> Tensor:  # [held rows]
        """Notes each held row's next token and its most likely ones."""
        held = self._held
        logits = self._model.get_output_embeddings()(hidden).float()
        row = Row(self._temperatures[held], self._top_ps[held], self._numbers[held, index])
        drawn = draw(logits, row, self._top_ids.shape[2])
        self._tokens[held, index] = drawn.tokens.int()
        self._top_ids[held, index] = drawn.top_ids.int()
        self._top_logprobs[held, index] = drawn.top_logprobs.half()
        return drawn.tokens

    def _collect(self) -> list[Completion]:
        """Each row up to its end."""
        lengths = self._lengths.tolist()
        fields = [f.cpu().numpy() for f in (self._tokens, self._top_ids, self._top_logprobs)]
        return [
            Completion(*(field[row, :length].copy() for field in fields))
            for row, length in enumerate(lengths)
        ]
