"""What every proposer knows of a request: its tokens and what its last commit asked for."""

import math
from collections.abc import Sequence

from specray.config import MAX_DEPTH
from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, Proposal, Source, TruncatedDistributions


class Session:
    """A request as a draft follows it, commit by commit."""

    __slots__ = (
        "commit_sent_at_ns",
        "depth",
        "is_unawaited",
        "sampling",
        "session_id",
        "target",
        "tenant",
        "token_ids",
    )

    def __init__(self, opened: OpenSession) -> None:
        """Raises SessionRejectedError when it has no tokens, or can't be sampled for."""
        if not 0 <= opened.sampling.temperature < math.inf:
            raise SessionRejectedError(f"temperature {opened.sampling.temperature} is none")
        if not opened.token_ids:
            raise SessionRejectedError(f"session {opened.session_id} is opened without tokens")
        self.session_id = opened.session_id
        self.tenant = opened.tenant
        self.target = opened.target
        self.sampling = opened.sampling
        self.token_ids = list(opened.token_ids)
        self.depth = min(opened.depth, MAX_DEPTH)
        self.is_unawaited = False  # whether no step is held back for what the last commit asks for
        self.commit_sent_at_ns = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    def extend(self, commit: Commit) -> None:
        """Appends a commit's tokens.

        Raises:
            SessionRejectedError: The commit adds nothing, or extends another length: one before
                it was missed.
        """
        if not commit.token_ids:
            raise SessionRejectedError(f"a commit to session {commit.session_id} adds nothing")
        if commit.position != len(self):
            raise SessionRejectedError(
                f"session {commit.session_id} has {len(self)} tokens, "
                f"its commit extends {commit.position}: reopen it"
            )
        self.token_ids += commit.token_ids
        self.is_unawaited = commit.is_unawaited
        self.depth = min(commit.depth, MAX_DEPTH)
        self.commit_sent_at_ns = commit.sent_at_ns

    def proposal(
        self,
        token_ids: Sequence[int],
        source: Source,
        distributions: TruncatedDistributions | None = None,
        confidences: tuple[float, ...] = (),
    ) -> Proposal:
        """A proposal that extends this session as it is now."""
        end = len(self), self.token_ids[-1]
        return self.ahead(*end, token_ids, source, distributions, confidences)

    def ahead(
        self,
        position: int,
        added: int,
        token_ids: Sequence[int],
        source: Source,
        distributions: TruncatedDistributions | None = None,
        confidences: tuple[float, ...] = (),
    ) -> Proposal:
        """One for when the session is so long and ends with `added`, to be sent before that.

        Its stamp is the latest commit's, so that it shows, too, that this has come.
        """
        return Proposal(
            self.session_id,
            position,
            added,
            tuple(token_ids),
            source,
            distributions,
            self.commit_sent_at_ns,
            confidences=confidences,
        )


def unknown_session(session_id: int) -> SessionRejectedError:
    """The rejection of a commit to a session that is not held."""
    return SessionRejectedError(f"session {session_id} is not open here: reopen it")
