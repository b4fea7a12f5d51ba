"""A session with keys and values, and the memory that all of them share."""

from collections.abc import Collection, Sequence

from specray.draft.kv_pool import KvPool
from specray.draft.session import Session
from specray.types import Commit, OpenSession


class ModelSession(Session):
    """A session and the part of the pool that it holds.

    The pool may be ahead: it keeps what was drafted beyond the last commit, which the next commit
    confirms as far as it agrees. Rolling back is counting less.
    """

    __slots__ = ("_ahead", "blocks", "num_cached")

    def __init__(self, opened: OpenSession) -> None:
        super().__init__(opened)
        self.blocks: list[int] = []
        self.num_cached = 0  # committed tokens whose keys and values are in the pool
        self._ahead: Sequence[int] = ()

    def extend(self, commit: Commit) -> None:
        """Appends a commit; what was drafted ahead and agrees with it counts as cached."""
        super().extend(commit)
        for drafted_id, token_id in zip(self._ahead, commit.token_ids, strict=False):
            if drafted_id != token_id:
                break
            self.num_cached += 1
        self._ahead = ()

    def set_cached(self, ahead: Sequence[int] = ()) -> None:
        """Notes that all committed tokens, and `ahead` beyond them, are in the pool."""
        self.num_cached = len(self)
        self._ahead = ahead

    @property
    def num_uncached(self) -> int:
        """Committed tokens that the model has yet to see."""
        return len(self) - self.num_cached


class SessionStore:
    """The open sessions, least recently used first, within a bound of number and memory."""

    def __init__(self, pool: KvPool, max_sessions: int) -> None:
        self._pool = pool
        self._max_sessions = max_sessions
        self._sessions: dict[int, ModelSession] = {}
        self._evicted: list[int] = []

    def add(self, session: ModelSession) -> None:
        """Holds a session; when there are too many, the idlest goes."""
        if len(self._sessions) >= self._max_sessions:
            self._evict(next(iter(self._sessions)))
        self._sessions[session.session_id] = session

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
            self._pool.release(session.blocks)

    def reserve(self, session: ModelSession, num_tokens: int, needed: Collection[int]) -> bool:
        """Makes room for a session of `num_tokens`, evicting the idlest that is not `needed`.

        Returns False when that is not enough; then the session keeps what it has.
        """
        while not self._pool.grow(session.blocks, num_tokens):
            idle = (i for i, s in self._sessions.items() if i not in needed and s.blocks)
            idlest = next(idle, None)
            if idlest is None:
                return False
            self._evict(idlest)
        return True

    def take_evicted(self) -> list[int]:
        """Sessions evicted since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _evict(self, session_id: int) -> None:
        self.remove(session_id)
        self._evicted.append(session_id)
