"""One forward pass over whatever is drafted ahead, for all sessions."""

from collections.abc import Collection, Iterator, Sequence
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from specray.draft.attention import CachedRow, NewTokens
from specray.draft.branch import Branch
from specray.draft.followed import Followed
from specray.draft.kv_pool import KvPool
from specray.draft.language_model import LanguageModel
from specray.draft.outcomes import OutcomeModel
from specray.draft.pace import Pace
from specray.sampling.truncation import BatchSampling, Truncated, draw
from specray.types import Proposal, TruncatedDistributions

_LEAST_PROBABILITY = 0.003  # of an outcome that is worth a row of a pass
_MAX_ROWS = {"cpu": 16}  # of a pass, whose time is what a commit may have to wait
_MAX_ROWS_ELSEWHERE = 128


class _Choice(NamedTuple):
    probability: float
    followed: Followed
    num_accepted: int
    added: int


class AheadPass:
    """Grows branches by a token a pass, and begins new ones where an outcome is likeliest."""

    def __init__(
        self,
        model: LanguageModel,
        pool: KvPool,
        outcomes: OutcomeModel,
        fan_out: int,
        support: int,
        generator: torch.Generator,
    ) -> None:
        """See `DraftAhead`."""
        self._model = model
        self._pool = pool
        self._outcomes = outcomes
        self._most_fan_out = self._fan_out = fan_out
        self._support = support
        self._generator = generator
        self._max_length = min(model.max_positions, pool.capacity)
        self._max_rows = _MAX_ROWS.get(model.device.type, _MAX_ROWS_ELSEWHERE)
        self.pace = Pace(self._max_rows)

    def limit_fan_out(self, most: int) -> None:
        """Begin at most so many branches per session from now on; from any thread."""
        self._fan_out = min(self._most_fan_out, most)

    def run(self, sessions: Collection[Followed]) -> list[Proposal] | None:
        """Computes one more token of everything; what is complete is to be sent.

        Returns None if there was nothing to compute.
        """
        feeding = [f for f in sessions if self._is_feedable(f)]
        reach = sum(self._outcomes.reach(f.flight, f.session.sampling) for f in feeding)
        most = self._most_rows(sessions)
        feeding = feeding[:most]
        num_rows = most - len(feeding)
        self._begin_branches(sessions, num_rows, reach)
        branches = _unfinished(sessions, num_rows)
        if not feeding and not branches:
            return None
        token_ids, drawn = self._compute(feeding, branches)
        num_taken = 0
        for followed in feeding:
            num_scored = followed.num_unscored
            followed.take_scores(drawn, num_taken)
            num_taken += num_scored
        for row, branch in enumerate(branches, start=num_taken):
            branch.append(token_ids[row], drawn.token_ids[row], drawn.probabilities[row])
        return [branch.send() for branch in branches if branch.is_complete]

    def _most_rows(self, sessions: Collection[Followed]) -> int:
        """What is in time, but one for each session; copies take no more memory than those may."""
        most = min(self._max_rows, max(self.pace.most_rows, len(sessions)))
        if not self._model.copies_rows:
            return most
        longest = max((f.stop + f.session.depth + 1 for f in sessions), default=1)
        return min(most, max(1, self._pool.capacity // longest))

    def _is_feedable(self, followed: Followed) -> bool:
        """Whether what may follow the flight's tokens can be computed, and is not yet."""
        if followed.flight.has_bonus or not followed.takes_bonus:
            return False
        session, stop = followed.session, followed.stop
        grown = self._pool.grow(session.states, stop) if stop <= self._max_length else None
        if grown is None:
            followed.takes_bonus = False
            return False
        session.states = grown
        return True

    def _begin_branches(self, sessions: Collection[Followed], num_rows: int, reach: float) -> None:
        """Gives the budget to the likeliest outcomes of all sessions.

        Some of it is kept for proposals accepted whole where it is not known yet what may follow
        them: `reach` is how many of the sessions' will be, on average.
        """
        begun = [branch for followed in sessions for branch in followed.branches.values()]
        num_running = sum(not branch.is_complete for branch in begun)
        budget = self._fan_out * len(sessions) - len(begun) - round(self._fan_out * reach)
        num_kept_rows = round(num_rows * reach / max(1, len(sessions)))
        most = min(num_rows - num_running - num_kept_rows, budget)
        if most > 0:
            for choice in nlargest(most, self._choices(sessions), key=lambda c: c.probability):
                self._begin(choice)

    def _choices(self, sessions: Collection[Followed]) -> Iterator[_Choice]:
        for followed in sessions:
            flight, session = followed.flight, followed.session
            if followed.probabilities is None:
                followed.probabilities = self._outcomes.probabilities(flight, session.sampling)
            rows, columns = np.nonzero(followed.probabilities >= _LEAST_PROBABILITY)
            for k, column in zip(rows.tolist(), columns.tolist(), strict=True):
                added = int(flight.candidates.token_ids[k, column])
                outcome = (len(session) + k + 1, added)
                is_taken = (k, added) in followed.branches or outcome in followed.left_out
                if k <= followed.num_fed and not is_taken:
                    yield _Choice(float(followed.probabilities[k, column]), followed, k, added)

    def _begin(self, choice: _Choice) -> None:
        probability, followed, num_accepted, added = choice
        session, start = followed.session, len(followed.session)
        depth = min(session.depth, self._max_length - start - num_accepted)
        tail = self._pool.grow(self._pool.empty(), depth) if depth > 0 else None
        if tail is not None:
            branch = Branch(session, start, num_accepted, added, probability, depth, tail)
            followed.branches[branch.key] = branch

    @torch.inference_mode()
    def _compute(
        self,
        feeding: Sequence[Followed],
        branches: Sequence[Branch],
    ) -> tuple[list[int], TruncatedDistributions]:
        """What is drawn for each place, and from what: [scored], [scored, support]."""
        rows = [f.row() for f in feeding] + [branch.row() for branch in branches]
        num_scored = [f.num_unscored for f in feeding] + [1] * len(branches)
        token_ids = [f.to_feed() for f in feeding] + [[b.next_token_id] for b in branches]
        sessions = [f.session for f in feeding] + [branch.session for branch in branches]
        sampling = BatchSampling.of(
            [s.sampling for s, num in zip(sessions, num_scored, strict=True) for _ in range(num)],
            self._model.device,
        )
        cache = self._model.make_cache(rows)
        new = _new_tokens(rows, token_ids, self._model.device)
        if max(num_scored) > 1:
            new = new._replace(num_scored=num_scored)
        logits = self._model.next_logits(new, cache)
        cache.store()
        drawn = draw(logits, sampling.with_distributions(), self._support, self._generator)
        if self._model.head_token_ids is not None:
            drawn = drawn.named(self._model.head_token_ids)
        return drawn.token_ids.tolist(), _on_cpu(drawn.distributions)


def _unfinished(sessions: Collection[Followed], most: int) -> list[Branch]:
    """Those furthest on first: what is half done should be done before a commit comes."""
    branches = (branch for followed in sessions for branch in followed.branches.values())
    unfinished = (branch for branch in branches if not branch.is_complete)
    return nlargest(most, unfinished, key=lambda b: (len(b.token_ids), b.probability))


def _new_tokens(
    rows: Sequence[CachedRow], token_ids: Sequence[Sequence[int]], device: torch.device
) -> NewTokens:
    positions = [range(row.num_cached, row.stop) for row in rows]
    return NewTokens(
        torch.tensor(list(chain.from_iterable(token_ids)), device=device),
        torch.tensor(list(chain.from_iterable(positions)), device=device),
        [len(tokens) for tokens in token_ids],
        [row.stop for row in rows],
    )


def _on_cpu(distributions: Truncated | None) -> TruncatedDistributions:
    assert distributions is not None  # greedy rows were asked for theirs too
    return TruncatedDistributions(
        distributions.token_ids.cpu().numpy().astype(np.int32),
        distributions.probabilities.cpu().numpy(),
    )
