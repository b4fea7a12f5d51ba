"""News for many, collected into one frame for each."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specray.types import Commit, OpenSession, Proposal, ProposalFrame, SessionFrame

Receiver = TypeVar("Receiver")


@dataclass(slots=True)
class _Sessions:
    opens: list[OpenSession] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    closes: list[int] = field(default_factory=list)


class SessionMail(Generic[Receiver]):
    """Frames in the making that tell of sessions.

    Ids must be such that opens may overtake closes.
    """

    def __init__(self) -> None:
        self._mail: dict[Receiver, _Sessions] = {}

    def open(self, receiver: Receiver, session: OpenSession) -> None:
        """Tell the receiver of a new session."""
        self._of(receiver).opens.append(session)

    def commit(self, receiver: Receiver, commit: Commit) -> None:
        """Tell the receiver what a verification added."""
        self._of(receiver).commits.append(commit)

    def close(self, receiver: Receiver, session_id: int) -> None:
        """Tell the receiver that a session has ended."""
        self._of(receiver).closes.append(session_id)

    def take(self) -> dict[Receiver, SessionFrame]:
        """One frame for each receiver that has mail; there is none afterwards."""
        mail, self._mail = self._mail, {}
        return {
            receiver: SessionFrame(tuple(news.opens), tuple(news.commits), tuple(news.closes))
            for receiver, news in mail.items()
        }

    def _of(self, receiver: Receiver) -> _Sessions:
        return self._mail.setdefault(receiver, _Sessions())


@dataclass(slots=True)
class _Proposals:
    proposals: list[Proposal] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)


class ProposalMail(Generic[Receiver]):
    """Frames in the making that answer."""

    def __init__(self) -> None:
        self._mail: dict[Receiver, _Proposals] = {}

    def propose(self, receiver: Receiver, proposal: Proposal) -> None:
        """Pass a proposal on to the receiver."""
        self._of(receiver).proposals.append(proposal)

    def lose(self, receiver: Receiver, session_id: int) -> None:
        """Tell the receiver that no draft holds a session."""
        self._of(receiver).lost.append(session_id)

    def discard(self, receiver: Receiver) -> None:
        """Drop what the receiver was to get; one without mail is ignored."""
        self._mail.pop(receiver, None)

    def take(self) -> dict[Receiver, ProposalFrame]:
        """One frame for each receiver that has mail; there is none afterwards."""
        mail, self._mail = self._mail, {}
        return {
            receiver: ProposalFrame(tuple(news.proposals), tuple(news.lost))
            for receiver, news in mail.items()
        }

    def _of(self, receiver: Receiver) -> _Proposals:
        return self._mail.setdefault(receiver, _Proposals())
