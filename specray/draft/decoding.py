"""Forward passes over a batch, each of which draws every row's next token."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specray.draft import compiled_draw
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.language_model import LanguageModel
from specray.sampling.truncation import BatchSampling, draw
from specray.types import SamplingSettings, TruncatedDistributions


class Batch(NamedTuple):
    """What is to be computed and drawn."""

    rows: Sequence[CachedRow]
    token_ids: Sequence[Sequence[int]]  # what each row's first pass computes, behind what is cached
    samplings: Sequence[SamplingSettings]  # of each row
    depths: Sequence[int]  # tokens to draw for each row, at least 1; they must not ascend
    shows_distributions: bool  # of greedy rows too
    num_scored: Sequence[int] = ()  # after how many of each row's last tokens one is drawn; or 1

    @property
    def draws_from_distributions(self) -> bool:
        """Whether anything but the most likely tokens is asked for."""
        return self.shows_distributions or any(not s.is_greedy for s in self.samplings)


class Decoded(NamedTuple):
    """The tokens, and what they were drawn from; anything where a row is less deep."""

    token_ids: NDArray[np.int32]  # [scored, depth]
    supports: NDArray[np.int32]  # [scored, depth, support]; support is 0 where none was asked for
    probabilities: NDArray[np.float32]  # likewise

    def distributions(self, row: int, depth: int) -> TruncatedDistributions:
        """A row's, [depth, support]."""
        return TruncatedDistributions(self.supports[row, :depth], self.probabilities[row, :depth])


class Decoder(Protocol):
    """Runs a batch's passes, and makes what they compute part of its sessions."""

    def decode(self, batch: Batch) -> Decoded:
        """One pass for each token of the deepest row."""
        ...


class Draw(Protocol):
    """Draws a token for each row of a batch."""

    def __call__(
        self,
        logits: Tensor,
        sampling: BatchSampling,
        support: int,
        generator: torch.Generator,
        names: Tensor | None,
    ) -> Tensor:
        """What `specray.sampling.truncation.draw` draws, all of it in one tensor.

        Args:
            logits: [rows, columns].
            sampling: the rows' settings.
            support: most tokens that a distribution keeps.
            generator: source of the randomness, on the logits' device.
            names: [columns] int64, the tokens that the columns stand for; None: themselves.

        Returns:
            [rows, 1 + 2 * support] int32: the token, its support, and the support's probabilities
            as float32; [rows, 1] where all are greedy and no distributions are asked for.
        """
        ...


class PlainDecoder:
    """A `Decoder` on any device, one operation after the other."""

    def __init__(self, model: LanguageModel, support: int, generator: torch.Generator) -> None:
        """Takes the draft.

        Args:
            model: the draft.
            support: most tokens that a distribution keeps.
            generator: randomness, on the model's device.
        """
        self._model = model
        self._support = support
        self._generator = generator
        self._draw: Draw = compiled_draw.draw if model.device.type == "cpu" else draw_by_torch

    @torch.inference_mode()
    def decode(self, batch: Batch) -> Decoded:
        """See `Decoder`."""
        device = self._model.device
        num_scored = batch.num_scored or [1] * len(batch.rows)
        samplings = [
            sampling
            for sampling, num in zip(batch.samplings, num_scored, strict=True)
            for _ in range(num)
        ]
        sampling = BatchSampling.of(samplings, device)
        if batch.shows_distributions:
            sampling = sampling.with_distributions()
        cache = self._model.make_cache(batch.rows)
        new = _new_tokens(batch, device)
        names = self._model.head_token_ids
        steps: list[Tensor] = []
        for step in range(1, batch.depths[0] + 1):
            logits = self._model.next_logits(new, cache)
            settings = sampling.first(len(logits))
            drawn = self._draw(logits, settings, self._support, self._generator, names)
            steps.append(drawn)
            if step < batch.depths[0]:
                num_rows = sum(depth > step for depth in batch.depths)
                new = new.followed_by(drawn[:num_rows, 0].long())
        cache.store()
        return unpacked(steps)


def _new_tokens(batch: Batch, device: torch.device) -> NewTokens:
    counts = [len(token_ids) for token_ids in batch.token_ids]
    lengths = [row.num_cached + count for row, count in zip(batch.rows, counts, strict=True)]
    positions = [
        range(row.num_cached, length) for row, length in zip(batch.rows, lengths, strict=True)
    ]
    return NewTokens(
        torch.tensor(list(chain.from_iterable(batch.token_ids)), device=device),
        torch.tensor(list(chain.from_iterable(positions)), device=device),
        counts,
        lengths,
        batch.num_scored,
    )


def draw_by_torch(
    logits: Tensor,
    sampling: BatchSampling,
    support: int,
    generator: torch.Generator,
    names: Tensor | None,
) -> Tensor:
    """See `Draw`; on any device."""
    drawn = draw(logits, sampling, support, generator)
    if names is not None:
        drawn = drawn.named(names)
    parts = [drawn.token_ids.unsqueeze(1).int()]
    if drawn.distributions is not None:
        token_ids, probabilities = drawn.distributions
        parts += [token_ids.int(), probabilities.view(torch.int32)]
    return torch.cat(parts, dim=1)


def unpacked(steps: Sequence[Tensor]) -> Decoded:
    """What passes of ever fewer rows have drawn, in one copy from the device."""
    flat = torch.cat(list(steps)).cpu().numpy()
    array: NDArray[Any] = np.zeros((len(steps[0]), len(steps), flat.shape[1]), np.int32)
    start = 0
    for index, step in enumerate(steps):
        array[: len(step), index] = flat[start : start + len(step)]
        start += len(step)
    support = flat.shape[1] // 2
    supports, probabilities = (
        np.ascontiguousarray(array[:, :, first : first + support]) for first in (1, 1 + support)
    )
    return Decoded(array[:, :, 0], supports, probabilities.view(np.float32))
