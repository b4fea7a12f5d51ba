"""Generation with transformers, for machines without vLLM: whole batches that only shrink."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specray.distill.generation import Completion, SampleRequest
from specray.distill.loops import loop_start
from specray.distill.row_cache import RowCache, bytes_per_column
from specray.distill.sampling_rows import Row, draw, uniforms
from specray.models.memory import free_bytes

logger = logging.getLogger(__name__)

_CACHE_SHARE = 0.4  # of free memory: giving rows up copies the others, and passes need some too
_PREFILL_TOKENS = 8192  # of one forward pass, padding included
_LOOK_FOR_LOOPS_EVERY = 32  # steps
_COMPACT_AT = 0.85  # share of rows still running below which the others' memory is given up


class TransformersGenerator:
    """Continues prompts in batches of similar length."""

    def __init__(
        self,
        model: Any,
        end_ids: frozenset[int],
        batch_size: int = 128,
        free: Callable[[torch.device], int] = free_bytes,
    ) -> None:
        """Takes the model as it is.

        Args:
            model: a causal LM on its device.
            end_ids: tokens that end an answer.
            batch_size: most requests that run together; fewer where memory is short.
            free: bytes that a device has left.
        """
        self._model = model.eval()
        self._end_ids = end_ids
        self._batch_size = batch_size
        self._free = free

    @torch.inference_mode()
    def generate(self, requests: Sequence[SampleRequest], top_k: int) -> list[Completion]:
        """See `Generator`; requests of similar length run together, in any order."""
        if not requests:
            return []
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt))
        completions: dict[int, Completion] = {}
        num_batches = -(-len(order) // self._rows_at_once(requests))
        for part in (rows.tolist() for rows in np.array_split(order, num_batches)):
            batch = _Batch(self._model, [requests[i] for i in part], self._end_ids, top_k)
            completions |= zip(part, batch.run(), strict=True)
        return [completions[i] for i in range(len(requests))]

    def _rows_at_once(self, requests: Sequence[SampleRequest]) -> int:
        """As many as memory has room for: a row takes all of its columns from the start."""
        longest = max(len(request.prompt) for request in requests)
        num_columns = longest + max(request.max_tokens for request in requests)
        room = int(_CACHE_SHARE * self._free(self._model.device))
        num_rows = max(1, room // (num_columns * bytes_per_column(self._model)))
        if num_rows < min(self._batch_size, len(requests)):
            logger.info("%d texts at once: memory has room for no more", num_rows)
        return min(self._batch_size, num_rows)


class _Step(NamedTuple):
    rows: list[int]  # of the batch as it was at first
    tokens: Tensor  # [rows]
    top_ids: Tensor  # [rows, top_k]
    top_logprobs: Tensor  # [rows, top_k]


class _Batch:
    """Rows padded on the left, so that every row's next token goes into the same column."""

    def __init__(
        self, model: Any, requests: list[SampleRequest], end_ids: frozenset[int], top_k: int
    ) -> None:
        self._model = model
        self._requests = requests
        self._end_ids = torch.tensor(sorted(end_ids))
        self._top_k = top_k
        self._width = max(len(request.prompt) for request in requests)
        self._max_tokens = max(request.max_tokens for request in requests)
        self._numbers = uniforms([request.seed for request in requests], self._max_tokens)
        self._temperatures = torch.tensor([request.temperature for request in requests])
        self._top_ps = torch.tensor([request.top_p for request in requests])
        self._limits = torch.tensor([request.max_tokens for request in requests])
        self._pads = torch.tensor([self._width - len(request.prompt) for request in requests])
        self._cache = RowCache(model, len(requests), self._width + self._max_tokens)
        self._held = torch.arange(len(requests))  # rows in memory, some of them at their end
        self._lengths = torch.zeros(len(requests), dtype=torch.long)  # 0 until a row has ended
        self._tokens = torch.zeros((len(requests), self._max_tokens), dtype=torch.int32)

    def run(self) -> list[Completion]:
        """Generates until every row has ended."""
        hidden = self._prefill()
        steps = []
        for count in range(1, self._max_tokens + 1):
            step = self._choose(hidden, count - 1)
            steps.append(step)
            going = self._going(step.tokens, count)
            if not bool(going.any()):
                break
            tokens = step.tokens
            if int(going.sum()) < _COMPACT_AT * len(self._held):
                self._cache.keep(going)
                self._held, tokens = self._held[going], tokens[going]
            hidden = self._decode(tokens, self._width + count - 1)
        return self._collect(steps)

    def _going(self, tokens: Tensor, count: int) -> Tensor:  # [held rows], bool
        """Which of the held rows need more tokens; notes how many the others have."""
        held = self._held
        self._tokens[held, count - 1] = tokens.int()
        ended = torch.isin(tokens, self._end_ids) | (self._limits[held] <= count)
        if count % _LOOK_FOR_LOOPS_EVERY == 0:
            ended |= self._is_looping(count)
        going = self._lengths[held] == 0
        self._lengths[held[going & ended]] = count
        return going & ~ended

    def _is_looping(self, count: int) -> Tensor:  # [held rows], bool
        rows = [
            self._requests[row].may_stop_in_loop
            and loop_start(self._tokens[row, :count].numpy()) < count
            for row in self._held.tolist()
        ]
        return torch.tensor(rows)

    def _prefill(self) -> Tensor:  # [rows, hidden]
        rows_at_once = max(1, _PREFILL_TOKENS // self._width)
        hidden = []
        for first in range(0, len(self._requests), rows_at_once):
            part = self._requests[first : first + rows_at_once]
            ids = torch.tensor([(0,) * int(self._width - len(r.prompt)) + r.prompt for r in part])
            self._cache.select(first, len(part))
            hidden.append(self._forward(ids, 0, self._pads[first : first + len(part)]))
        self._cache.select(0, len(self._requests))
        return torch.cat(hidden)

    def _decode(self, tokens: Tensor, column: int) -> Tensor:
        return self._forward(tokens[:, None], column, self._pads[self._held])

    def _forward(self, ids: Tensor, column: int, pads: Tensor) -> Tensor:  # [rows, hidden]
        stop = column + ids.shape[1]
        columns = torch.arange(stop)
        queries = columns[column:]
        mask = (columns >= pads[:, None, None]) & (columns <= queries[:, None])
        # Padding attends to itself: a row without any key is NaN, and NaN spreads.
        mask |= columns == queries[:, None]
        self._cache.start_pass(column, stop)
        device = self._model.device
        output = self._model.base_model(
            input_ids=ids.to(device),
            attention_mask=mask[:, None].to(device),
            position_ids=(queries - pads[:, None]).clamp(min=0).to(device),
            past_key_values=self._cache,
            use_cache=True,
        )
        return output.last_hidden_state[:, -1]

    def _choose(self, hidden: Tensor, index: int) -> _Step:
        held = self._held
        logits = self._model.get_output_embeddings()(hidden).float().cpu()
        row = Row(self._temperatures[held], self._top_ps[held], self._numbers[held, index])
        drawn = draw(logits, row, self._top_k)
        return _Step(held.tolist(), drawn.tokens, drawn.top_ids.int(), drawn.top_logprobs.half())

    def _collect(self, steps: list[_Step]) -> list[Completion]:
        """Turns steps of rows into rows of steps, each up to its end."""
        rows: list[list[tuple[Any, ...]]] = [[] for _ in self._requests]
        lengths = self._lengths.tolist()
        for step in steps:
            arrays = (field.numpy() for field in step[1:])
            for row, *fields in zip(step.rows, *arrays, strict=True):
                if len(rows[row]) < lengths[row]:
                    rows[row].append(tuple(fields))
        return [_stack(row) for row in rows]


def _stack(row: list[tuple[Any, ...]]) -> Completion:
    tokens, ids, logprobs = zip(*row, strict=True)
    return Completion(np.array(tokens, np.int32), np.stack(ids), np.stack(logprobs))
