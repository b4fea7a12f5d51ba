"""What the relay saw of one request's speculation, for people who want to look at it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specray.types import Commit, OpenSession, Proposal, ProposalFrame, SessionFrame, Source


class Accepted(NamedTuple):
    """Draft tokens that became part of an answer."""

    position: int  # of the first of them, counted from the answer's beginning
    num_tokens: int
    source: Source


@dataclass(slots=True)
class _Session:
    num_prompt_tokens: int
    length: int
    last_token_id: int
    proposals: list[Proposal] = field(default_factory=list)  # that may still be verified
    accepted: list[Accepted] = field(default_factory=list)  # not taken yet
    is_closed: bool = False


class SessionWatch:
    """One request's session, while the relay has the watch; it never touches what is relayed.

    The relay's thread feeds it, any other may ask.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._lock = threading.Lock()
        self._key: tuple[str, int] | None = None
        self._session: _Session | None = None

    # The relay's thread.

    def from_target(self, target: str, frame: SessionFrame) -> None:
        """A target's news."""
        with self._lock:
            for opened in frame.opens:
                self._open((target, opened.session_id), opened)
            if self._session is None or self._key is None or self._key[0] != target:
                return
            for commit in frame.commits:
                if commit.session_id == self._key[1]:
                    _note_commit(self._session, commit)
            self._session.is_closed |= self._key[1] in frame.closes

    def to_targets(self, frames: Mapping[str, ProposalFrame]) -> None:
        """Proposals on their way, by target."""
        with self._lock:
            if self._session is None or self._key is None or self._key[0] not in frames:
                return
            for proposal in frames[self._key[0]].proposals:
                if (
                    proposal.session_id == self._key[1]
                    and proposal.position >= self._session.length
                ):
                    self._session.proposals.append(proposal)

    # Whoever looks.

    def take(self) -> list[Accepted]:
        """What has been accepted since the last call."""
        with self._lock:
            if self._session is None:
                return []
            accepted, self._session.accepted = self._session.accepted, []
            return accepted

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will come; so too if there has been no session."""
        with self._lock:
            return self._session is None or self._session.is_closed

    def last_step(self, num_tokens: int) -> Accepted | None:
        """What the last step accepted, which has no commit, if the answer has so many tokens.

        The step's last token is counted as the target's own, which it mostly is.
        """
        with self._lock:
            session = self._session
            if session is None:
                return None
            position = session.length - session.num_prompt_tokens
            num_accepted = num_tokens - position - 1
            for proposal in reversed(session.proposals):
                if num_accepted > 0 and _extends(proposal, session):
                    return Accepted(position, num_accepted, proposal.source)
            return None

    def _open(self, key: tuple[str, int], opened: OpenSession) -> None:
        if not self._request_id or opened.request_id != self._request_id:
            return
        length, last_token_id = len(opened.token_ids), opened.token_ids[-1]
        if self._session is None:
            self._key = key
            self._session = _Session(opened.num_prompt_tokens, length, last_token_id)
        elif key == self._key:  # reopened: its draft was lost, and what was committed unseen
            self._session.length, self._session.last_token_id = length, last_token_id


def _note_commit(session: _Session, commit: Commit) -> None:
    num_accepted = len(commit.token_ids) - 1
    verified = (
        proposal
        for proposal in reversed(session.proposals)
        if commit.position == session.length
        and _extends(proposal, session)
        and proposal.token_ids[:num_accepted] == commit.token_ids[:-1]
    )
    if num_accepted > 0 and (proposal := next(verified, None)) is not None:
        position = commit.position - session.num_prompt_tokens
        session.accepted.append(Accepted(position, num_accepted, proposal.source))
    session.length = commit.position + len(commit.token_ids)
    session.last_token_id = commit.token_ids[-1]
    session.proposals = [p for p in session.proposals if p.position >= session.length]


def _extends(proposal: Proposal, session: _Session) -> bool:
    return (proposal.position, proposal.last_token_id) == (session.length, session.last_token_id)
