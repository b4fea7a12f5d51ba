"""A session with keys and values, and the memory that all of them share."""

from collections.abc import Collection, Sequence
from typing import Protocol

from torch import Tensor

from specray.draft.fair_share import FairShare, Held
from specray.draft.kv_pool import KvPool
from specray.draft.session import Session
from specray.types import Commit, OpenSession


class ModelSession(Session):
    """A session and its keys and values.

    They may be ahead: what was drafted beyond the last commit is kept, and the next commit
    confirms it as far as it agrees. Rolling back is counting less.
    """

    __slots__ = ("_ahead", "num_cached", "states")

    def __init__(self, opened: OpenSession, states: Tensor) -> None:
        """Takes the memory of a session without tokens; see `KvPool.empty`."""
        super().__init__(opened)
        self.states = states  # [layers, 2 * heads, tokens, dim]
        self.num_cached = 0  # committed tokens whose keys and values are in `states`
        self._ahead: Sequence[int] = ()

    def extend(self, commit: Commit) -> None:
        """Appends a commit; what was drafted ahead and agrees with it counts as cached."""
        super().extend(commit)
        for drafted_id, token_id in zip(self._ahead, commit.token_ids, strict=False):
            if drafted_id != token_id:
                break
            self.num_cached += 1
        self._ahead = ()

    def set_cached(self, num_tokens: int, ahead: Sequence[int] = ()) -> None:
        """Notes that so many committed tokens, and `ahead` beyond them, are in `states`."""
        self.num_cached = num_tokens
        self._ahead = ahead

    @property
    def num_uncached(self) -> int:
        """Committed tokens that the model has yet to see."""
        return len(self) - self.num_cached


class Spare(Protocol):
    """Memory that sessions don't depend on."""

    def drop(self, session_id: int) -> None:
        """Frees what belongs to a session; unknown ids are ignored."""
        ...

    def drop_all(self) -> bool:
        """Frees what it can; whether there was anything."""
        ...


class SessionStore:
    """The open sessions, least recently used first, within a bound of number and memory."""

    def __init__(
        self, pool: KvPool, max_sessions: int, spare: Spare, share: FairShare | None = None
    ) -> None:
        """Takes the memory.

        Args:
            pool: where sessions keep their keys and values.
            max_sessions: the most to hold.
            spare: who holds memory that sessions don't depend on.
            share: which tenant makes room; all count alike if left out.
        """
        self._pool = pool
        self._spare = spare
        self._max_sessions = max_sessions
        self._share = share or FairShare()
        self._sessions: dict[int, ModelSession] = {}
        self._evicted: list[int] = []

    def add(self, session: ModelSession) -> None:
        """Holds a session; when there are too many, one goes: see `FairShare`."""
        self._sessions[session.session_id] = session
        if len(self._sessions) > self._max_sessions:
            places = [Held(i, other.tenant, 1) for i, other in self._sessions.items()]
            self._evict(self._share.choose(places, {session.session_id}, short=1))

    def get(self, session_id: int) -> ModelSession | None:
        """The session, when it is open."""
        return self._sessions.get(session_id)

    def use(self, session_ids: Sequence[int]) -> list[ModelSession]:
        """The sessions, now the most recently used."""
        used = [self._sessions.pop(session_id) for session_id in session_ids]
        self._sessions.update(zip(session_ids, used, strict=True))
        return used

    def remove(self, session_id: int) -> None:
        """Gives a session's memory back; unknown ids are ignored."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._spare.drop(session_id)
            self._pool.release(session.states)

    def reserve(self, session: ModelSession, num_tokens: int, needed: Collection[int]) -> bool:
        """Makes room for a session of `num_tokens`, evicting others that are not `needed`.

        What is spare goes first, then what `FairShare` chooses. Returns False when all that may go
        is not enough; then the session keeps what it has, and so do others.
        """
        while (grown := self._pool.grow(session.states, num_tokens)) is None:
            if self._spare.drop_all():
                continue
            if all(i in needed or not s.states.shape[2] for i, s in self._sessions.items()):
                return False
            memory = [
                Held(i, s.tenant, max(s.states.shape[2], num_tokens if s is session else 0))
                for i, s in self._sessions.items()
            ]
            # 0 where the device has less than the budget: whatever goes may be enough.
            short = max(1, self._pool.shortage(session.states, num_tokens))
            evicted = self._share.choose(memory, needed, short, asking=session.tenant)
            if not evicted:
                return False
            self._evict(evicted)
        session.states = grown
        return True

    def take_evicted(self) -> list[int]:
        """Sessions evicted since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _evict(self, session_ids: Sequence[int]) -> None:
        for session_id in session_ids:
            self.remove(session_id)
        self._evicted += session_ids
