"""A draft without a model: answers often repeat their prompt and themselves.

Prompt lookup decoding (A. Saxena, 2023), with counts over all matches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specray.config import PromptLookupConfig
from specray.draft.ngram_index import NgramIndex
from specray.draft.session import Session, unknown_session
from specray.types import Commit, OpenSession, Proposal

_MOST_OUTCOMES = 4  # tokens per place; rarer ones are not worth their bytes


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
        """The best continuation of each session, then those for the outcomes of verifying it.

        All are point masses, for sampled requests too.
        """
        entries = (self._sessions[session_id] for session_id in session_ids)
        return [proposal for entry in entries for proposal in self._propose(*entry)]

    def work(self) -> bool:
        """Nothing: all is done at once."""
        return False

    def take_evicted(self) -> list[int]:
        """Nothing: an index is small, and closed with its session."""
        return []

    def _propose(self, session: Session, index: NgramIndex) -> list[Proposal]:
        token_ids = index.continuation(session.depth) if session.depth else []
        now = session.proposal(token_ids, "prompt_lookup")
        if self._config.min_ngram < 2 or not session.depth:
            return [now]  # a single token may match anywhere: its outcomes can't be listed
        return [replace(now, covers_outcomes=True), *self._ahead(session, index, token_ids)]

    def _ahead(
        self, session: Session, index: NgramIndex, token_ids: Sequence[int]
    ) -> Iterator[Proposal]:
        """Draft ahead: what to propose after each likely outcome of verifying `token_ids`.

        An outcome is a number of accepted tokens and one more token. The next suffix can match
        only if that token has followed its predecessor before, so few outcomes cover all of them.
        """
        for num_accepted in range(len(token_ids) + 1):
            accepted = token_ids[:num_accepted]
            last = accepted[-1] if accepted else session.token_ids[-1]
            for added in index.successors(last, _MOST_OUTCOMES):
                following = index.continuation(session.depth, [*accepted, added])
                if following:
                    yield Proposal(
                        session.session_id,
                        len(session) + num_accepted + 1,
                        added,
                        tuple(following),
                        "prompt_lookup",
                    )
