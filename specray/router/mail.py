"""News for many replicas, collected into one frame for each."""

from dataclasses import dataclass, field

from specray.types import Commit, OpenSession, Proposal, ProposalFrame, SessionFrame


@dataclass(slots=True)
class _Sessions:
    opens: list[OpenSession] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    closes: list[int] = field(default_factory=list)


class SessionMail:
    """Frames under way to drafts. Ids must be such that opens may overtake closes."""

    def __init__(self) -> None:
        self._by_draft: dict[str, _Sessions] = {}

    def open(self, draft: str, session: OpenSession) -> None:
        """Tell `draft` of a new session."""
        self._of(draft).opens.append(session)

    def commit(self, draft: str, commit: Commit) -> None:
        """Tell `draft` what a verification added."""
        self._of(draft).commits.append(commit)

    def close(self, draft: str, session_id: int) -> None:
        """Tell `draft` that a session has ended."""
        self._of(draft).closes.append(session_id)

    def frames(self) -> dict[str, SessionFrame]:
        """One frame for each draft that has mail."""
        return {
            draft: SessionFrame(tuple(news.opens), tuple(news.commits), tuple(news.closes))
            for draft, news in self._by_draft.items()
        }

    def _of(self, draft: str) -> _Sessions:
        return self._by_draft.setdefault(draft, _Sessions())


@dataclass(slots=True)
class _Proposals:
    proposals: list[Proposal] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)


class ProposalMail:
    """Frames under way to targets."""

    def __init__(self) -> None:
        self._by_target: dict[str, _Proposals] = {}

    def propose(self, target: str, proposal: Proposal) -> None:
        """Pass a proposal on to `target`."""
        self._of(target).proposals.append(proposal)

    def lose(self, target: str, session_id: int) -> None:
        """Tell `target` that no draft holds a session."""
        self._of(target).lost.append(session_id)

    def frames(self) -> dict[str, ProposalFrame]:
        """One frame for each target that has mail."""
        return {
            target: ProposalFrame(tuple(news.proposals), tuple(news.lost))
            for target, news in self._by_target.items()
        }

    def _of(self, target: str) -> _Proposals:
        return self._by_target.setdefault(target, _Proposals())
