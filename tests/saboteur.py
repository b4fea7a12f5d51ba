"""Drafts that do everything wrong, or much of it, as proposers for the real draft server."""

import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from specray.config import ModelDraftConfig
from specray.draft.fair_share import FairShare
from specray.draft.model_factory import make_model_proposer
from specray.draft.outcomes import Outcome
from specray.draft.proposer import DraftsAhead, TellsWork
from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, Proposal, TruncatedDistributions


class Saboteur:
    """Sends garbage, stale, repeated, over-long, foreign and out-of-vocabulary proposals."""

    def __init__(self, seed: int = 0, vocab_size: int = 49152, loss_rate: float = 0.02) -> None:
        self._random = random.Random(seed)
        self._vocab_size = vocab_size
        self._loss_rate = loss_rate
        self._tokens: dict[int, list[int]] = {}
        self._last: dict[int, Commit] = {}
        self._old: list[Proposal] = []

    def open(self, session: OpenSession) -> None:
        self._tokens[session.session_id] = list(session.token_ids)

    def commit(self, commit: Commit) -> None:
        if commit.session_id not in self._tokens:
            raise SessionRejectedError("unknown session")
        self._tokens[commit.session_id].extend(commit.token_ids)
        self._last[commit.session_id] = commit

    def close(self, session_id: int) -> None:
        self._tokens.pop(session_id, None)
        self._last.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        proposals = [self._sabotage(session_id) for session_id in session_ids]
        old = self._random.sample(self._old, min(2, len(self._old)))
        self._old = (self._old + proposals)[-50:]
        return [*old, *proposals, *proposals[:1]]  # stale, new, repeated

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        """Now and then pretend to have lost a session."""
        if self._tokens and self._random.random() < self._loss_rate:
            session_id = self._random.choice(list(self._tokens))
            self.close(session_id)
            return [session_id]
        return []

    def _sabotage(self, session_id: int) -> Proposal:
        tokens, commit = self._tokens[session_id], self._last[session_id]
        kind = self._random.randrange(6)
        length = 200 if kind == 0 else commit.depth  # over-long
        ids = tuple(self._random.randrange(self._vocab_size) for _ in range(length))
        if kind == 1:  # outside the vocabulary
            ids = (*ids[:-1], self._vocab_size + self._random.randrange(1000))
        position = len(tokens) + (self._random.choice((-3, 1, 40)) if kind == 2 else 0)
        last_token_id = tokens[-1] + (1 if kind == 3 else 0)
        distributions = None
        if kind == 4:  # a "distribution" that is none
            distributions = TruncatedDistributions(
                np.zeros((length, 4), np.int32), np.full((length, 4), np.nan, np.float32)
            )
        elif kind == 5 and len(tokens) > 20:  # plausible text from elsewhere in the request
            ids = tuple(tokens[-20 : -20 + length])
        return Proposal(
            session_id,
            max(position, 0),
            last_token_id,
            ids,
            "model",
            distributions,
            commit.sent_at_ns if self._random.random() < 0.5 else 1,
            self._random.randrange(10**9),
        )


class Unreliable:
    """A model's draft. A quarter of its answers are a saboteur's; what it sends ahead is sound."""

    def __init__(self, **model: Any) -> None:
        """Takes the fields of `draft.model`."""
        proposer = make_model_proposer(ModelDraftConfig(**model), FairShare(), None)
        assert isinstance(proposer, DraftsAhead)
        assert isinstance(proposer, TellsWork)
        self._model, self._worked_for = proposer, proposer.worked_for
        self._saboteur = Saboteur(loss_rate=0.002)  # the model reads anew what it has lost
        self._random = random.Random(1)

    def open(self, session: OpenSession) -> None:
        self._model.open(session)
        self._saboteur.open(session)

    def commit(self, commit: Commit) -> None:
        self._model.commit(commit)
        self._saboteur.commit(commit)

    def close(self, session_id: int) -> None:
        self._model.close(session_id)
        self._saboteur.close(session_id)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        sound = self._model.propose(session_ids)
        is_faulty = {p.session_id: self._random.random() < 0.25 for p in sound}
        faulty = self._saboteur.propose([i for i in is_faulty if is_faulty[i]])
        return [*faulty, *(p for p in sound if not is_faulty[p.session_id])]

    def work(self) -> bool:
        return self._model.work()

    def worked_for(self) -> Collection[int]:
        return self._worked_for()

    def take_ahead(self) -> list[Proposal]:
        return self._model.take_ahead()

    def leave_out(self, session_id: int, outcomes: Collection[Outcome]) -> None:
        self._model.leave_out(session_id, outcomes)

    def take_evicted(self) -> list[int]:
        """The saboteur's pretended losses, and true ones."""
        evicted = {*self._model.take_evicted(), *self._saboteur.take_evicted()}
        for session_id in evicted:
            self.close(session_id)
        return list(evicted)
