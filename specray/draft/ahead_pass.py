"""One forward pass over whatever is drafted ahead, for all sessions."""

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from specray.control.batch_cost import BatchCost
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.branch import Branch
from specray.draft.followed import Followed
from specray.draft.kv_pool import KvPool
from specray.draft.language_model import LanguageModel
from specray.draft.outcomes import OutcomeModel
from specray.sampling.truncation import BatchSampling, Truncated, draw
from specray.types import Proposal, TruncatedDistributions

_LEAST_PROBABILITY = 0.003  # of an outcome that is worth a row of a pass
_MEMORY, _SURPRISE = 0.99, 2.0  # of passes' times: some 100 count, and none for more than that
_MAX_ROWS = {"cpu": 16}  # of a pass, whose time is what a commit may have to wait
_MAX_ROWS_ELSEWHERE = 128


class _Choice(NamedTuple):
    """An outcome to begin a branch for."""

    followed: Followed
    probability: float
    num_accepted: int
    added: int


class _Wanted(NamedTuple):
    """Something that a pass may compute."""

    value: float  # the chance that the target comes to verify what it adds
    what: Followed | Branch | _Choice

    @property
    def num_tokens(self) -> int:
        """That the pass computes for it."""
        return self.what.num_to_feed if isinstance(self.what, Followed) else 1


class AheadPass:
    """Grows branches by a token a pass, and begins new ones, whatever is likeliest to be verified.

    What a token is worth is the probability of its outcome times the chance that those before it
    survive. A pass takes the worthiest, as many of them as raise worth over time: more rows cover
    more outcomes but make each pass slower, and a continuation needs as many passes as it has
    tokens. None of that looks at a branch's tokens, only at how many there are.
    """

    def __init__(
        self,
        model: LanguageModel,
        pool: KvPool,
        outcomes: OutcomeModel,
        fan_out: int,
        support: int,
        generator: torch.Generator,
        clock: Callable[[], float],
    ) -> None:
        """See `DraftAhead`."""
        self._model = model
        self._pool = pool
        self._outcomes = outcomes
        self._most_fan_out = self._fan_out = fan_out
        self._support = support
        self._generator = generator
        self._clock = clock
        self._max_length = min(model.max_positions, pool.capacity)
        self._max_rows = _MAX_ROWS.get(model.device.type, _MAX_ROWS_ELSEWHERE)
        self._cost = BatchCost(_MEMORY)  # of passes, by their tokens
        self._is_warm = False  # kernels are made in the first pass

    def limit_fan_out(self, most: int) -> None:
        """Begin at most so many branches per session from now on; from any thread."""
        self._fan_out = min(self._most_fan_out, most)

    def expected_s(self, num_tokens: int) -> float:
        """How long a pass takes; 0 before anything is known."""
        return self._cost.expected_s(num_tokens)

    def run(self, sessions: Collection[Followed], left_s: float) -> list[Proposal] | None:
        """Computes one more token of what is worth most; what is complete is to be sent.

        Args:
            sessions: whose outcomes to draft for.
            left_s: longest that the pass should take.

        Returns:
            None if there was nothing to compute.
        """
        most = self._most_rows(sessions)
        wanted = nlargest(most, self._wanted(sessions, most), key=lambda item: item.value)
        chosen = [item.what for item in wanted[: self._num_worthwhile(wanted, left_s)]]
        feeding = [item for item in chosen if isinstance(item, Followed)]
        begun = [self._begin(item) for item in chosen if isinstance(item, _Choice)]
        branches = [item for item in (*chosen, *begun) if isinstance(item, Branch)]
        if not feeding and not branches:
            return None
        self._compute(feeding, branches)
        return [branch.send() for branch in branches if branch.is_complete]

    def _most_rows(self, sessions: Collection[Followed]) -> int:
        """Copies take no more memory than the sessions may."""
        if not self._model.copies_rows:
            return self._max_rows
        longest = max((f.stop + f.session.depth + 1 for f in sessions), default=1)
        return min(self._max_rows, max(1, self._pool.capacity // longest))

    def _num_worthwhile(self, wanted: Sequence[_Wanted], left_s: float) -> int:
        """How many, the worthiest first, bring most per second; the first in any case."""
        value, num_tokens, best, num = 0.0, 0, 0.0, 0
        for index, item in enumerate(wanted, start=1):
            value += item.value
            num_tokens += item.num_tokens
            seconds = self.expected_s(num_tokens)
            if not seconds:
                return len(wanted)  # nothing is known yet
            if index == 1 or (seconds <= left_s and value >= best * seconds):
                best, num = value / seconds, index
        return num

    def _wanted(self, sessions: Collection[Followed], most: int) -> Iterator[_Wanted]:
        """What there is to compute.

        Of outcomes to begin with, the likeliest within the budget. Some of that is kept for
        proposals accepted whole where it is not known yet what may follow them.
        """
        num_kept, num_begun = 0.0, 0
        for followed in sessions:
            sampling = followed.session.sampling
            if self._is_feedable(followed):
                reach = self._outcomes.reach(followed.flight, sampling)
                num_kept += self._fan_out * reach
                yield _Wanted(reach, followed)
            survival = self._outcomes.survival_rate(sampling)
            num_begun += len(followed.branches)
            for branch in followed.branches.values():
                if not branch.is_complete:
                    yield _Wanted(branch.probability * survival ** len(branch.token_ids), branch)
        num_left = self._fan_out * len(sessions) - num_begun - round(num_kept)
        if num_left > 0:
            choices = self._choices(sessions)
            for choice in nlargest(min(num_left, most), choices, key=lambda c: c.probability):
                yield _Wanted(choice.probability, choice)

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
                    yield _Choice(followed, float(followed.probabilities[k, column]), k, added)

    def _begin(self, choice: _Choice) -> Branch | None:
        followed, probability, num_accepted, added = choice
        session, start = followed.session, len(followed.session)
        depth = min(session.depth, self._max_length - start - num_accepted)
        tail = self._pool.grow(self._pool.empty(), depth) if depth > 0 else None
        if tail is None:
            return None
        branch = Branch(session, start, num_accepted, added, probability, depth, tail)
        followed.branches[branch.key] = branch
        return branch

    def _compute(self, feeding: Sequence[Followed], branches: Sequence[Branch]) -> None:
        """Hands out what is drawn for each place, and from what."""
        began_s = self._clock()
        num_tokens = sum(followed.num_to_feed for followed in feeding) + len(branches)
        token_ids, drawn = self._draw(feeding, branches)
        num_taken = 0
        for followed in feeding:
            num_scored = followed.num_unscored
            followed.take_scores(drawn, num_taken)
            num_taken += num_scored
        for row, branch in enumerate(branches, start=num_taken):
            branch.append(token_ids[row], drawn.token_ids[row], drawn.probabilities[row])
        self._learn(num_tokens, self._clock() - began_s)

    def _learn(self, num_tokens: int, seconds: float) -> None:
        """Learns how long passes take, hardly from one that had to wait for its core."""
        if self._is_warm:
            expected_s = self.expected_s(num_tokens) or seconds
            self._cost.observe(num_tokens, min(seconds, _SURPRISE * expected_s))
        self._is_warm = True

    @torch.inference_mode()
    def _draw(
        self, feeding: Sequence[Followed], branches: Sequence[Branch]
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
