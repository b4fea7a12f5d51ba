"""A draft whose every proposal is wrong, and sure of itself; for `loadtest.off_is_free`."""

from collections.abc import Sequence
from dataclasses import dataclass

from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, Proposal

WRONG = 0  # a special token, which no answer holds


@dataclass(slots=True)
class _Followed:
    num_tokens: int
    last: Commit | None = None


class WrongDraft:
    """Proposes the same wrong token for every position, at once, with full confidence."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Followed] = {}

    def open(self, session: OpenSession) -> None:
        self._sessions[session.session_id] = _Followed(len(session.token_ids))

    def commit(self, commit: Commit) -> None:
        if commit.session_id not in self._sessions:
            raise SessionRejectedError("unknown session")
        session = self._sessions[commit.session_id]
        session.num_tokens += len(commit.token_ids)
        session.last = commit

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return [self._proposal(session_id) for session_id in session_ids]

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        return []

    def _proposal(self, session_id: int) -> Proposal:
        session = self._sessions[session_id]
        commit = session.last
        assert commit is not None
        return Proposal(
            session_id,
            session.num_tokens,
            commit.token_ids[-1],
            (WRONG,) * commit.depth,
            "model",
            None,
            commit.sent_at_ns,
            0,
            confidences=(1.0,) * commit.depth,
        )
