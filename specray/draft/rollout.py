"""Drafting itself: one forward pass per position, over all sessions that go that deep."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specray.draft.attention import AttentionCache, NewTokens
from specray.draft.language_model import LanguageModel
from specray.draft.model_session import ModelSession
from specray.sampling.truncation import BatchSampling, Drawn, draw
from specray.types import TruncatedDistributions


class Draft(NamedTuple):
    """One session's drafted tokens and, when they were sampled, what they were drawn from."""

    token_ids: tuple[int, ...]
    distributions: TruncatedDistributions | None
    candidates: TruncatedDistributions | None  # what might have stood in each place, if asked for

    @property
    def confidences(self) -> tuple[float, ...]:
        """Of a greedy draft's tokens; of sampled ones the target sees the distributions."""
        if self.candidates is None or self.distributions is not None:
            return ()
        return self.candidates.largest()


class Rollout:
    """Continues a batch of sessions token by token."""

    def __init__(
        self,
        model: LanguageModel,
        support: int,
        generator: torch.Generator,
        *,
        shows_candidates: bool,
    ) -> None:
        self._model = model
        self._shows_candidates = shows_candidates
        self._support = support
        self._generator = generator

    @torch.inference_mode()
    def run(
        self, sessions: Sequence[ModelSession], depths: Sequence[int], cache: AttentionCache
    ) -> list[Draft]:
        """Drafts `depths[i]` tokens, at least 1, for each session; depths must not ascend."""
        sampling = BatchSampling.of([s.sampling for s in sessions], self._model.device)
        if self._shows_candidates:
            sampling = sampling.with_distributions()
        new = self._uncached(sessions)
        steps: list[Drawn] = []
        for step in range(1, depths[0] + 1):
            logits = self._model.next_logits(new, cache)
            drawn = draw(logits, sampling.first(len(logits)), self._support, self._generator)
            if self._model.head_token_ids is not None:
                drawn = drawn.named(self._model.head_token_ids)
            steps.append(drawn)
            num_rows = sum(depth > step for depth in depths)
            new = new.followed_by(drawn.token_ids[:num_rows])
        return _split(steps, sessions)

    def _uncached(self, sessions: Sequence[ModelSession]) -> NewTokens:
        """What each session's keys and values lack; at least its last token."""
        counts = [max(1, session.num_uncached) for session in sessions]
        tails = [s.token_ids[-count:] for s, count in zip(sessions, counts, strict=True)]
        lengths = [len(session) for session in sessions]
        positions = [range(n - count, n) for n, count in zip(lengths, counts, strict=True)]
        return NewTokens(
            torch.tensor(list(chain.from_iterable(tails)), device=self._model.device),
            torch.tensor(list(chain.from_iterable(positions)), device=self._model.device),
            counts,
            lengths,
        )


def _split(steps: list[Drawn], sessions: Sequence[ModelSession]) -> list[Draft]:
    """Turns one entry per pass into one per session, in one copy from the device each."""
    token_ids = _gather([step.token_ids for step in steps], len(sessions))
    supports = probabilities = None
    if steps[0].distributions is not None:
        drawn = [step.distributions for step in steps if step.distributions is not None]
        supports = _gather([d.token_ids for d in drawn], len(sessions)).astype(np.int32)
        probabilities = _gather([d.probabilities for d in drawn], len(sessions))
    drafts = []
    for row, session in enumerate(sessions):
        depth = sum(row < len(step.token_ids) for step in steps)
        candidates = None
        if supports is not None and probabilities is not None:
            candidates = TruncatedDistributions(supports[row, :depth], probabilities[row, :depth])
        shipped = None if session.sampling.is_greedy else candidates
        drafts.append(Draft(tuple(token_ids[row, :depth].tolist()), shipped, candidates))
    return drafts


def _gather(parts: list[Tensor], num_rows: int) -> NDArray[Any]:
    """Stacks tensors of ever fewer rows into an array [rows, steps, ...], on the CPU."""
    padded = [
        torch.cat((part, part.new_zeros(num_rows - len(part), *part.shape[1:]))) for part in parts
    ]
    return torch.stack(padded, dim=1).cpu().numpy()
