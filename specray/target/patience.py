"""Whom a step waits for, and for how long."""

import math
from collections.abc import Sequence

from specray.control.latency import LatencyEstimate
from specray.target.session import Session

_PATIENT_MISSES = 2  # in a row; nobody waits for a session any longer until it answers
_PATIENT_SILENCE = 4  # waits in vain in a row for all of a router's sessions; then nobody does


class Patience:
    """Learns from waits how long a proposal takes, and which sessions and routers are silent.

    Only a wait in vain is held against anyone: no step allows for drafting. And only proposals
    that are awaited are timed: a running step keeps its process from taking them in.
    """

    def __init__(self) -> None:
        self._latency = LatencyEstimate()
        self._silence: dict[str, int] = {}  # router -> waits in vain in a row

    def expected_wait_s(self, max_wait_s: float) -> float:
        """From a commit to its proposal; infinite when no step waits for so long."""
        mean_s = self._latency.mean_s or 0.0
        return mean_s if mean_s <= max_wait_s else math.inf

    def deadline(self, awaited: Sequence[Session], max_wait_s: float) -> float:
        """When to go on without those that are still missing; one for the whole batch."""
        patience_s = self._latency.patience_s
        wait_s = max_wait_s if patience_s is None else min(max_wait_s, patience_s)
        return max(session.committed_at for session in awaited) + wait_s

    def has_left_for(self, session: Session) -> bool:
        """Whether the session, or its router, has not been silent for too long."""
        is_silent = self._silence.get(session.router, 0) >= _PATIENT_SILENCE
        return session.num_missed < _PATIENT_MISSES and not is_silent

    def hear_of(self, session: Session) -> None:
        """A proposal came for the session, in time or late."""
        session.num_missed = 0
        self._silence.pop(session.router, None)

    def observe_answer(self, session: Session, arrived: float) -> None:
        """The session's commit was answered; earlier than it was sent if drafted ahead."""
        self._latency.observe(max(0.0, arrived - session.committed_at))

    def observe_wait(
        self, awaited: Sequence[Session], silent: Sequence[Session], deadline: float
    ) -> None:
        """A wait has ended, in vain for the silent among the awaited."""
        if silent:  # their proposals take longer than the wait; assume twice as long
            self._latency.observe(2 * (deadline - max(s.committed_at for s in awaited)))
        for session in silent:
            session.num_missed += 1
        silent_ids = {session.session_id for session in silent}
        heard_of = {s.router for s in awaited if s.session_id not in silent_ids}
        for router in {s.router for s in silent} - heard_of:
            self._silence[router] = self._silence.get(router, 0) + 1

    def forget(self, router: str) -> None:
        """The router has gone; it may never come back, and if it does, with another draft."""
        self._silence.pop(router, None)
