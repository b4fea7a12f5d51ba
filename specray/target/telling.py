"""What drafts are told of sessions: announcements, commits, ends; one frame per router and step."""

from collections.abc import Callable, Sequence
from typing import Protocol

from specray.target.session import Session
from specray.types import Commit, OpenSession, SessionFrame, SpeculationPolicy
from specray.wire.mail import SessionMail

_MOST_DOUBLINGS = 10  # of a pause, in tokens


class Streams(Protocol):
    """The way to the routers; see `service.RouterStreams`."""

    policy: SpeculationPolicy

    def choose_router(self) -> str:
        """A router for a request that came through none: each in turn; empty if there is none."""

    def is_connected(self, router: str) -> bool:
        """Whether a frame to this router would leave."""

    def send(self, router: str, frame: SessionFrame) -> None:
        """Send if the router is connected; never blocks."""

    def trusts(self, router: str) -> bool:
        """Whether the distributions that come from this router may be used."""

    def take_lost(self) -> list[int]:
        """Sessions whose draft is gone, since the last call."""

    def take_departed(self) -> list[str]:
        """Routers whose stream ended, since the last call."""


class Telling:
    """Frames in the making, and what each session's draft has been told."""

    def __init__(self, streams: Streams, clock: Callable[[], float], name: str = "") -> None:
        """Takes the way to the routers, a clock in seconds, and the engine's name."""
        self._streams = streams
        self._clock = clock
        self._name = name
        self._mail = SessionMail[str]()

    def announce(self, session: Session, num_tokens: int) -> None:
        """Open the session on a draft with its first tokens, if its router is connected."""
        session.is_announced = self._streams.is_connected(session.router)
        if session.is_announced:
            opened = OpenSession(
                session.session_id,
                tuple(session.token_ids[:num_tokens]),
                session.num_prompt_tokens,
                session.sampling,
                session.max_depth,
                session.request_id,
                session.traceparent,
                session.tenant,
                self._name,
                session.is_shareable,
            )
            session.num_told = num_tokens
            self._mail.open(session.router, opened)

    def begin_commit(self, session: Session, length_before: int) -> bool:
        """Ask for a proposal, if one is wanted; whether there is a draft to tell.

        Args:
            session: already longer.
            length_before: its length in tokens before the step; announced with these if need be.
        """
        if not session.is_announced and len(session.token_ids) >= session.announced_from:
            self.announce(session, length_before)
        session.is_due = session.is_announced and session.wanted_depth > 0
        return session.is_announced

    def commit(self, session: Session, *, is_awaited: bool) -> None:
        """Tell the draft what was added, and what it has missed, for one is told only if asked.

        Args:
            session: its draft hears of it.
            is_awaited: whether an answer matters that was not drafted ahead.
        """
        depth = session.wanted_depth
        session.committed_at = self._tell(session, depth, is_unawaited=depth > 0 and not is_awaited)

    def note_loss(self, session: Session) -> None:
        """Its draft let go of it; it is announced again, but ever later if none holds it for long.

        Some session no draft may hold, or not all of them at once, and an announcement has all its
        tokens.
        """
        session.is_announced = session.is_due = False
        pause = 2 ** min(session.num_losses, _MOST_DOUBLINGS) - 1
        session.announced_from = len(session.token_ids) + pause
        session.note_loss()

    def retract(self, router: str, sessions: Sequence[Session]) -> None:
        """A router's stream has ended; one that has taken its place may have heard of sessions."""
        heard_of = tuple(session.session_id for session in sessions if session.is_announced)
        if heard_of and self._streams.is_connected(router):
            self._streams.send(router, SessionFrame(closes=heard_of))
        for session in sessions:
            session.is_announced = session.is_due = False
            session.num_unheard = 0

    def close(self, session: Session) -> None:
        """End the session on its draft, if that has heard of it.

        What was accepted last is told before, to whoever looks on.
        """
        if session.is_announced:
            if session.accepted and len(session.token_ids) > session.num_told:
                self._tell(session, 0)
            self._mail.close(session.router, session.session_id)

    def _tell(self, session: Session, depth: int, *, is_unawaited: bool = False) -> float:
        """Adds a commit of all that is new, and returns its time in seconds."""
        now, end = self._clock(), len(session.token_ids)
        commit = Commit(
            session.session_id,
            session.num_told,
            tuple(session.token_ids[session.num_told :]),
            depth,
            int(now * 1e9),
            tuple(
                accepted._replace(num_tokens=min(accepted.num_tokens, end - accepted.position))
                for accepted in session.accepted
                if accepted.position < end  # an answer may end within what was accepted
            ),
            session.was_late,
            is_unawaited,
        )
        self._mail.commit(session.router, commit)
        session.num_told, session.accepted, session.was_late = end, [], False
        return now

    def flush(self) -> None:
        """Send what has gathered, one frame per router."""
        for router, frame in self._mail.take().items():
            self._streams.send(router, frame)
