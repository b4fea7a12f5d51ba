"""Drafts of every quality, as proposers that `engine.FakeRouter` puts behind a stream."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, Proposal, SessionFrame, TruncatedDistributions
from tests.target.tiny_model import VOCAB_SIZE, TinyModel

_SUPPORT = 24


@dataclass(slots=True)
class Followed:
    """A session as a draft knows it."""

    opened: OpenSession
    token_ids: list[int]
    commit: Commit | None = field(default=None)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.opened.num_prompt_tokens

    @property
    def depth(self) -> int:
        assert self.commit is not None
        return self.commit.depth

    def proposal(
        self, token_ids: Sequence[int], distributions: TruncatedDistributions | None = None
    ) -> Proposal:
        assert self.commit is not None
        return Proposal(
            self.opened.session_id,
            len(self.token_ids),
            self.token_ids[-1],
            tuple(token_ids),
            "model",
            distributions,
            self.commit.sent_at_ns,
            draft_time_us=100,
        )


class Draft:
    """Follows sessions and checks that no commit is missed; subclasses propose."""

    def __init__(self) -> None:
        self._sessions: dict[int, Followed] = {}
        self.opened: list[OpenSession] = []

    def open(self, session: OpenSession) -> None:
        self.opened.append(session)
        self._sessions[session.session_id] = Followed(session, list(session.token_ids))

    def commit(self, commit: Commit) -> None:
        session = self._sessions.get(commit.session_id)
        if session is None or len(session.token_ids) != commit.position:
            raise SessionRejectedError(f"{commit} does not extend {session}")
        session.token_ids.extend(commit.token_ids)
        session.commit = commit

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        return []


class Scripted(Draft):
    """Knows the answers; each token is replaced by a random one with probability `noise`."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self._random = random.Random(0)
        self._noise = noise
        self.num_proposed = 0
        self.answers: dict[tuple[int, ...], Sequence[int]] = {}  # by prompt

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        self.num_proposed += len(session_ids)
        sessions = (self._sessions[session_id] for session_id in session_ids)
        return [session.proposal(self._guess(session)) for session in sessions]

    def _guess(self, session: Followed) -> list[int]:
        prompt = session.opened.token_ids[: session.opened.num_prompt_tokens]
        start = session.num_generated
        known = list(self.answers.get(prompt, ())[start : start + session.depth])
        known += [0] * (session.depth - len(known))
        return [self._maybe_wrong(token_id) for token_id in known]

    def _maybe_wrong(self, token_id: int) -> int:
        is_wrong = self._random.random() < self._noise
        return self._random.randrange(VOCAB_SIZE) if is_wrong else token_id


class Frozen(Scripted):
    """Answers a number of rounds perfectly and then no more."""

    def __init__(self, num_rounds: int) -> None:
        super().__init__()
        self.num_rounds = self._num_left = num_rounds

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        self._num_left -= 1
        return super().propose(session_ids) if self._num_left >= 0 else []


class Distorted(Draft):
    """Draws from distributions of its own, which look at the last token only, and ships them.

    They are the target's after `prompt` and that token, flattened, times noise and cut to a few
    tokens: like the target's in some places, far from them in others.
    """

    def __init__(self, tiny: TinyModel, prompt: Sequence[int], lies: bool = False) -> None:
        super().__init__()
        self._rng = np.random.default_rng(0)
        self.keeps_distributions: Callable[[Followed], bool] = lambda _: True
        p = tiny.probabilities([[*prompt, token_id] for token_id in range(VOCAB_SIZE)])
        weights = p**0.8 * self._rng.lognormal(sigma=0.8, size=p.shape)
        self._ids = np.argsort(-weights, axis=1)[:, :_SUPPORT].astype(np.int32)
        kept = np.take_along_axis(weights, self._ids, axis=1)
        sizes = self._rng.integers(_SUPPORT // 3, _SUPPORT + 1, size=(VOCAB_SIZE, 1))
        kept[np.arange(_SUPPORT) >= sizes] = 0.0
        self._q = _normalised(kept)  # [vocab, support]
        tilt = np.where(self._ids % 2 == 0, 4.0, 1.0)
        self._shipped = _normalised(kept**2 * tilt) if lies else self._q
        self._cumulative = self._q.astype(float).cumsum(axis=1)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        sessions = [self._sessions[session_id] for session_id in session_ids]
        contexts = [np.array([session.token_ids[-1] for session in sessions])]
        for _ in range(max(session.depth for session in sessions)):
            contexts.append(self._draw(contexts[-1]))
        chains = np.stack(contexts, axis=1)  # [sessions, depth + 1]
        return [
            session.proposal(chain[1 : session.depth + 1].tolist(), self._q_of(session, chain))
            for session, chain in zip(sessions, chains, strict=True)
        ]

    def dense(self) -> NDArray[np.float64]:  # [vocab, vocab]
        """What it draws from, by the last token."""
        q = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
        np.put_along_axis(q, self._ids, self._q, axis=1)
        return q

    def _draw(self, last_token_ids: NDArray[np.int64]) -> NDArray[np.int64]:  # [sessions] both
        cumulative = self._cumulative[last_token_ids]
        uniform = self._rng.random((len(last_token_ids), 1)) * cumulative[:, -1:]
        columns = (cumulative <= uniform).sum(axis=1)
        return self._ids[last_token_ids, columns].astype(np.int64)

    def _q_of(self, session: Followed, chain: NDArray[np.int64]) -> TruncatedDistributions | None:
        if session.opened.sampling.is_greedy or not self.keeps_distributions(session):
            return None
        rows = chain[:-1][: session.depth]
        return TruncatedDistributions(self._ids[rows], self._shipped[rows])


class ScriptedAhead(Scripted):
    """Also sends, for each number of accepted tokens, what follows the right token there."""

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        answers = super().propose(session_ids)
        ahead = [after for session_id in session_ids for after in self._ahead(session_id)]
        return [*answers, *ahead]

    def _ahead(self, session_id: int) -> Iterator[Proposal]:
        session = self._sessions[session_id]
        prompt = session.opened.token_ids[: session.opened.num_prompt_tokens]
        rest = self.answers.get(prompt, ())[session.num_generated :]
        for num_accepted in range(min(session.depth + 1, len(rest))):
            guess = rest[num_accepted + 1 :][: session.depth]
            yield Proposal(
                session_id,
                len(session.token_ids) + num_accepted + 1,
                rest[num_accepted],
                tuple(self._maybe_wrong(token_id) for token_id in guess),
                "model",
            )


class DistortedAhead(Distorted):
    """Drafts ahead for the likeliest tokens at each place, each time with new randomness.

    What it has sent ahead it does not propose again.
    """

    def __init__(self, tiny: TinyModel, prompt: Sequence[int], fan_out: int = 4) -> None:
        super().__init__(tiny, prompt)
        self._fan_out = fan_out
        self._sent: dict[int, dict[tuple[int, int], NDArray[np.int64]]] = {}

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return [after for session_id in session_ids for after in self._propose(session_id)]

    def _propose(self, session_id: int) -> Iterator[Proposal]:
        session = self._sessions[session_id]
        length = len(session.token_ids)
        chain = self._sent.get(session_id, {}).get((length, session.token_ids[-1]))
        if chain is None:
            chain = self._chain(session.token_ids[-1], session.depth)
            yield session.proposal(chain[1:].tolist(), self._q_of(session, chain))
        self._sent[session_id] = sent = {}
        for num_accepted, last_token_id in enumerate(chain.tolist()):
            for added in self._ids[last_token_id, : self._fan_out].tolist():
                outcome = (length + num_accepted + 1, added)
                sent[outcome] = after = self._chain(added, session.depth)
                yield Proposal(
                    session_id,
                    *outcome,
                    tuple(after[1:].tolist()),
                    "model",
                    self._q_of(session, after),
                )

    def _chain(self, last_token_id: int, depth: int) -> NDArray[np.int64]:  # [depth + 1]
        chain = [np.array([last_token_id])]
        for _ in range(depth):
            chain.append(self._draw(chain[-1]))
        return np.concatenate(chain)


class BriefAhead(DistortedAhead):
    """Drafts one token each time, and counts what the target has added behind it by itself."""

    num_continued = 0  # commits with accepted tokens of both

    def commit(self, commit: Commit) -> None:
        sources = [accepted.source for accepted in commit.accepted]
        self.num_continued += sources == ["model", "stop_gap_ngram"]
        super().commit(commit)

    def _chain(self, last_token_id: int, depth: int) -> NDArray[np.int64]:  # [2]
        return super()._chain(last_token_id, min(1, depth))


_T = TypeVar("_T", Proposal, SessionFrame)


class Disturbance(Generic[_T]):
    """Loses, repeats, delays and reorders what is sent: proposals, or frames of commits."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._held: list[_T] = []

    def pass_on(self, items: Sequence[_T]) -> list[_T]:
        items = [*self._held, *items]
        self._random.shuffle(items)
        self._held, sent = [], []
        for item in items:
            fate = self._random.random()
            if fate > 0.1:  # else it is lost
                (self._held if fate < 0.3 else sent).append(item)
            if fate > 0.85:  # comes twice, now and later
                self._held.append(item)
        return sent


class Disturbed:
    """A draft whose proposals have that happen to them."""

    def __init__(self, draft: Draft, seed: int = 0) -> None:
        self._draft = draft
        self._disturbance: Disturbance[Proposal] = Disturbance(seed)

    def open(self, session: OpenSession) -> None:
        self._draft.open(session)

    def commit(self, commit: Commit) -> None:
        self._draft.commit(commit)

    def close(self, session_id: int) -> None:
        self._draft.close(session_id)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return self._disturbance.pass_on(self._draft.propose(session_ids))

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        return []


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
