"""Drafting itself: one forward pass per position, over all sessions that go that deep."""

from collections.abc import Sequence
from typing import NamedTuple

from specray.draft.attention import CachedRow
from specray.draft.decoding import Batch, Decoder
from specray.draft.model_session import ModelSession
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

    def __init__(self, decoder: Decoder, *, shows_candidates: bool) -> None:
        self._decoder = decoder
        self._shows_candidates = shows_candidates

    def run(self, sessions: Sequence[ModelSession], depths: Sequence[int]) -> list[Draft]:
        """Drafts `depths[i]` tokens, at least 1, for each session; depths must not ascend.

        The keys and values of all tokens but each session's last are then in its memory.
        """
        counts = [max(1, session.num_uncached) for session in sessions]
        batch = Batch(
            [
                CachedRow(s.states, len(s) - count, len(s) + depth - 1)
                for s, count, depth in zip(sessions, counts, depths, strict=True)
            ],
            [s.token_ids[-count:] for s, count in zip(sessions, counts, strict=True)],
            [s.sampling for s in sessions],
            depths,
            self._shows_candidates,
        )
        decoded = self._decoder.decode(batch)
        drafts = []
        for row, (session, depth) in enumerate(zip(sessions, depths, strict=True)):
            token_ids = tuple(decoded.token_ids[row, :depth].tolist())
            candidates = None
            if batch.draws_from_distributions:
                candidates = decoded.distributions(row, depth)
            shipped = None if session.sampling.is_greedy else candidates
            drafts.append(Draft(token_ids, shipped, candidates))
        return drafts
