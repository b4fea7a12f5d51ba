"""Which draft holds which target's session. Pure bookkeeping: frames in, frames to send out."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple, get_args
from zlib import crc32

from specray.types import Commit, OpenSession, Proposal, ProposalFrame, SessionFrame
from specray.wire.mail import ProposalMail, SessionMail
from specray.wire.stats import Reason

_log = logging.getLogger(__name__)

_FEW, _SHARE = 2, 1 / 4  # sessions, or of the fullest draft's, that a new one may lack
_LATELY_S = 1.0  # a target that asked so recently will open the session again


class Moves(NamedTuple):
    """Frames for both sides, when sessions change their draft."""

    to_drafts: dict[str, SessionFrame]
    to_targets: dict[str, ProposalFrame]


@dataclass(slots=True)
class _Session:
    target: str
    target_id: int  # the id that the target knows
    relay_id: int  # the id that the draft knows; never used twice
    draft: str
    request_id: str
    num_tokens: int
    asked_at: float = -math.inf  # when its target last wanted a proposal
    commit_sent_at_ns: int = 0  # of the latest commit that asked for a proposal at once

    @property
    def names(self) -> dict[str, str | int]:
        """What log lines call it."""
        return {"request_id": self.request_id, "session_id": self.relay_id}


@dataclass(slots=True)
class _Draft:
    sessions: dict[int, _Session] = field(default_factory=dict)  # by relay_id
    owing: dict[int, float] = field(default_factory=dict)  # relay_id -> since when, oldest first
    heard_at: float = -math.inf  # when it last proposed anything
    is_new: bool = True  # it is given some of the others' sessions until it has its share

    def has_stalled(self, deadline: float) -> bool:
        """Whether it has owed a proposal, and said nothing of any session, since then."""
        return bool(self.owing) and max(self.heard_at, next(iter(self.owing.values()))) < deadline


class SessionTable:
    """The sessions of one switch. Memory is bounded by the sessions that targets have open."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, name: str = "") -> None:
        """Takes a clock, in seconds, and the switch's name, by which ties are broken.

        So that switches which share drafts do not all begin with the same one.
        """
        self._clock = clock
        self._name = name
        self._relay_ids = count(1)
        self._drafts: dict[str, _Draft] = {}
        self._targets: dict[str, dict[int, _Session]] = {}  # target -> target_id -> session
        self._homeless: dict[str, set[int]] = {}  # target -> ids that no draft could take
        self._suspects: set[str] = set()  # drafts that stalled and have not proposed since
        self.fallbacks: dict[Reason, int] = dict.fromkeys(get_args(Reason), 0)

    @property
    def num_open(self) -> dict[str, int]:
        """Open sessions of each connected draft."""
        return {address: len(draft.sessions) for address, draft in self._drafts.items()}

    @property
    def num_homeless(self) -> int:
        """Sessions that wait for a draft."""
        return sum(map(len, self._homeless.values()))

    def from_target(self, target: str, frame: SessionFrame) -> dict[str, SessionFrame]:
        """What the drafts are to be sent, one frame each, when `target` sends `frame`."""
        mail = SessionMail[str]()
        for opened in frame.opens:
            self._open(target, opened, mail)
        for commit in frame.commits:
            if commit.session_id not in frame.closes:  # else it is for who looks on
                self._commit(target, commit, mail)
        for target_id in frame.closes:
            self._close(target, target_id, mail)
        return mail.take()

    def from_draft(self, draft: str, frame: ProposalFrame) -> dict[str, ProposalFrame]:
        """What the targets are to be sent when `draft` sends `frame`; unknown ids are dropped."""
        state = self._drafts.get(draft)
        if state is None:
            return {}
        mail = ProposalMail[str]()
        for proposal in frame.proposals:
            session = state.sessions.get(proposal.session_id)
            if session is not None:
                self._suspects.discard(draft)
                state.heard_at = self._clock()
                self._settle(state, session, proposal)
                mail.propose(session.target, replace(proposal, session_id=session.target_id))
        for relay_id in frame.lost:
            session = state.sessions.get(relay_id)
            if session is not None:
                self._lose(session, "draft_evicted", mail)
                state.is_new = False  # it has no room for more, or can't hold any
        return mail.take()

    def add_draft(self, draft: str) -> dict[str, ProposalFrame]:
        """`draft` takes sessions from now on; targets hear that their homeless ones may reopen."""
        self._drafts.setdefault(draft, _Draft())
        mail = ProposalMail[str]()
        for target, target_ids in self._homeless.items():
            for target_id in sorted(target_ids):
                mail.lose(target, target_id)
        self._homeless.clear()
        return mail.take()

    def remove_draft(self, draft: str, reason: Reason) -> dict[str, ProposalFrame]:
        """`draft` has died or stalled: targets hear that its sessions are lost."""
        mail = ProposalMail[str]()
        state = self._drafts.pop(draft, _Draft())
        for session in state.sessions.values():
            self.fallbacks[reason] += 1
            _log.info("Lost its draft %s: %s", draft, reason, extra=session.names)
            del self._targets[session.target][session.target_id]
            mail.lose(session.target, session.target_id)
        if reason == "draft_stalled":
            self._suspects.add(draft)
        return mail.take()

    def even_out(self) -> Moves:
        """Lets the fullest draft give a session away while one that is new, or back, has few.

        Its target opens it again, where there are fewest. One at a time, the shortest first, as the
        other draft has to read it anew; and of those only that are asked for, as a target that
        wants no proposals opens none again.
        """
        to_drafts, to_targets = SessionMail[str](), ProposalMail[str]()
        fullest = max((draft.sessions for draft in self._drafts.values()), key=len, default={})
        for draft in self._drafts.values():
            num_lacking = len(fullest) - len(draft.sessions)
            draft.is_new &= num_lacking > max(_FEW, _SHARE * len(fullest))
        if any(draft.is_new and not self._is_on_trial(a) for a, draft in self._drafts.items()):
            asked_from = self._clock() - _LATELY_S
            asking = (session for session in fullest.values() if session.asked_at >= asked_from)
            session = min(asking, key=lambda session: session.num_tokens, default=None)
            if session is not None:
                self._lose(session, "evened_out", to_targets)
                to_drafts.close(session.draft, session.relay_id)
        return Moves(to_drafts.take(), to_targets.take())

    def keep_drafts(self, drafts: frozenset[str]) -> None:
        """Forget the conduct of drafts that are not among these."""
        self._suspects &= drafts

    def remove_target(self, target: str) -> dict[str, SessionFrame]:
        """`target` has gone: drafts are to close its sessions."""
        mail = SessionMail[str]()
        for session in self._targets.pop(target, {}).values():
            self._detach(session)
            mail.close(session.draft, session.relay_id)
        self._homeless.pop(target, None)
        return mail.take()

    def stalled(self, timeout_s: float) -> list[str]:
        """The drafts that owe proposals and have made none for longer than `timeout_s`.

        One that works its way through many sessions is slow, not stalled.
        """
        deadline = self._clock() - timeout_s
        return [a for a, draft in self._drafts.items() if draft.has_stalled(deadline)]

    def _open(self, target: str, opened: OpenSession, mail: SessionMail[str]) -> None:
        self._close(target, opened.session_id, mail)
        draft = self._pick()
        if draft is None:
            self.fallbacks["no_draft"] += 1
            self._homeless.setdefault(target, set()).add(opened.session_id)
            return
        relay_id = next(self._relay_ids)
        names = (target, opened.session_id, relay_id, draft, opened.request_id)
        session = _Session(*names, len(opened.token_ids))
        _log.debug("Opened on draft %s", draft, extra=session.names)
        self._targets.setdefault(target, {})[opened.session_id] = session
        self._drafts[draft].sessions[session.relay_id] = session
        mail.open(draft, replace(opened, session_id=session.relay_id))

    def _commit(self, target: str, commit: Commit, mail: SessionMail[str]) -> None:
        session = self._targets.get(target, {}).get(commit.session_id)
        if session is None:
            return
        owing = self._drafts[session.draft].owing
        session.num_tokens = commit.position + len(commit.token_ids)
        if commit.depth > 0:
            session.asked_at = self._clock()
        if commit.depth > 0 and not commit.is_unawaited:
            session.commit_sent_at_ns = commit.sent_at_ns
            owing.setdefault(session.relay_id, self._clock())
        else:
            owing.pop(session.relay_id, None)
        mail.commit(session.draft, replace(commit, session_id=session.relay_id, accepted=()))

    def _close(self, target: str, target_id: int, mail: SessionMail[str]) -> None:
        self._homeless.get(target, set()).discard(target_id)
        session = self._targets.get(target, {}).pop(target_id, None)
        if session is not None:
            self._detach(session)
            mail.close(session.draft, session.relay_id)

    def _pick(self) -> str | None:
        return min(self._drafts, key=self._burden, default=None)

    def _burden(self, address: str) -> tuple[bool, int, int, int, str]:
        draft = self._drafts[address]
        rank = crc32(f"{self._name} {address}".encode()) if self._name else 0
        is_on_trial = self._is_on_trial(address)
        return is_on_trial, len(draft.sessions), len(draft.owing), rank, address

    def _is_on_trial(self, address: str) -> bool:
        """A draft that stalled gets one session to prove itself, not all new ones."""
        return address in self._suspects and bool(self._drafts[address].sessions)

    def _settle(self, draft: _Draft, session: _Session, proposal: Proposal) -> None:
        if draft.owing.pop(session.relay_id, None) is None:
            return
        if proposal.commit_sent_at_ns != session.commit_sent_at_ns:
            draft.owing[session.relay_id] = self._clock()  # behind, but moving: it still owes

    def _lose(self, session: _Session, reason: Reason, mail: ProposalMail[str]) -> None:
        self.fallbacks[reason] += 1
        _log.info("Lost its draft %s: %s", session.draft, reason, extra=session.names)
        self._detach(session)
        del self._targets[session.target][session.target_id]
        mail.lose(session.target, session.target_id)

    def _detach(self, session: _Session) -> None:
        draft = self._drafts[session.draft]
        del draft.sessions[session.relay_id]
        draft.owing.pop(session.relay_id, None)
