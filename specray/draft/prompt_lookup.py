"""A draft without a model: answers often repeat their prompt and themselves.

Prompt lookup decoding (A. Saxena, 2023), with counts over all matches.
"""

from collections.abc import Sequence

from specray.config import PromptLookupConfig
from specray.draft.ngram_index import NgramIndex
from specray.draft.session import Session, unknown_session
from specray.types import Commit, OpenSession, Proposal


class PromptLookup:
    """Proposes what followed the same tokens earlier in the request, as point masses."""

    def __init__(self, config: PromptLookupConfig) -> None:
        self._config = config
        self._sessions: dict[int, tuple[Session, NgramIndex]] = {}

    def open(self, session: OpenSession) -> None:
        """Indexes the session's tokens; raises SessionRejectedError when there are none."""
        self.close(session.session_id)
        index = NgramIndex(self._config.min_ngram, self._config.max_ngram, session.token_ids)
        self._sessions[session.session_id] = Session(session), index

    def commit(self, commit: Commit) -> None:
        """Indexes what was committed; raises SessionRejectedError after a missed commit."""
        entry = self._sessions.pop(commit.session_id, None)
        if entry is None:
            raise unknown_session(commit.session_id)
        session, index = entry
        session.extend(commit)
        index.extend(commit.token_ids)
        self._sessions[commit.session_id] = entry

    def close(self, session_id: int) -> None:
        """Forgets the session."""
        self._sessions.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        """The best continuation of each session, point masses for sampled requests too."""
        return [self._propose(*self._sessions[session_id]) for session_id in session_ids]

    def take_evicted(self) -> list[int]:
        """Nothing: an index is small, and closed with its session."""
        return []

    def _propose(self, session: Session, index: NgramIndex) -> Proposal:
        token_ids = index.continuation(session.depth) if session.depth else []
        return session.proposal(token_ids, "prompt_lookup")
