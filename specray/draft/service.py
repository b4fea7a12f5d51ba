"""The draft as a service: a handler of the wire's server around one engine thread."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from specray.draft.engine import DraftEngine, EngineStats
from specray.draft.inbox import MAX_FRAMES, Arrival, Departure, Inbox, Router
from specray.draft.proposer import LimitsFanOut, Proposer
from specray.errors import StartupError
from specray.observability.journal import Journal
from specray.types import Commit, OpenSession, SamplingSettings, SessionFrame
from specray.wire.timeline import OFF, Timeline

LONGEST_TURN_S = 60.0
"""Of the engine; one takes a pass or a few. Beyond that its device, or a custom proposer, hangs."""
_WARM_UP_SESSION = 0  # the engine's ids start at 1
_WARM_UP_PASSES = 4  # of drafting ahead
_WARM_UP_TOKENS = tuple(range(16))  # nothing to copy, so that a hybrid asks its model


class DraftService:
    """Answers routers' commits with a proposer's guesses.

    `connected`, `received` and `disconnected` are the wire's `PeerHandler`: called on its thread,
    they never block. Call `warm_up` if at all, then `start`.
    """

    def __init__(
        self,
        proposer: Proposer,
        max_frames: int = MAX_FRAMES,
        journal: Journal | None = None,
        timeline: Timeline = OFF,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Takes what proposes, and the tenants' weights; 1 for those that are not named."""
        self._proposer = proposer
        self._journal = journal or Journal("specray.draft")
        self._inbox = Inbox(max_frames)
        self._engine = DraftEngine(proposer, self._inbox, self._journal, timeline, weights or {})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="specray-draft")
        self._running: Future[None] | None = None

    def warm_up(self) -> None:
        """Drafts once, greedy and sampled, so that the first request doesn't pay for set-up."""
        for sampling in (SamplingSettings(), SamplingSettings(temperature=1.0)):
            num_tokens = len(_WARM_UP_TOKENS)
            session = OpenSession(
                *(_WARM_UP_SESSION, _WARM_UP_TOKENS, num_tokens, sampling),
                depth=2,
                is_shareable=False,  # it is nobody's answer
            )
            self._proposer.open(session)
            self._proposer.commit(
                Commit(_WARM_UP_SESSION, num_tokens, (num_tokens,), 2, sent_at_ns=0)
            )
            self._proposer.propose([_WARM_UP_SESSION])
            for _ in range(_WARM_UP_PASSES):
                self._proposer.work()
            self._proposer.close(_WARM_UP_SESSION)

    def start(self) -> None:
        """Starts the engine's thread."""
        self._running = self._thread.submit(self._engine.run)

    def close(self) -> None:
        """Ends the engine's thread; sessions are forgotten."""
        self._inbox.close()
        self._thread.shutdown(wait=not self._hangs)
        self._journal.close()

    def check_health(self) -> None:
        """Returns while the engine runs.

        Raises:
            StartupError: It has not been started, has died or hangs; the replica must be replaced.
        """
        if self._running is None:
            raise StartupError("the draft's engine has not been started")
        if self._running.done():
            error = self._running.exception()
            raise StartupError(f"the draft's engine has ended: {error!r}") from error
        if self._hangs:
            raise StartupError(f"the draft's engine has hung for more than {LONGEST_TURN_S:g} s")

    @property
    def _hangs(self) -> bool:
        began_s = self._engine.turn_began_s
        return began_s is not None and time.monotonic() - began_s > LONGEST_TURN_S

    def limit_fan_out(self, most: int) -> None:
        """Prepares for at most so many outcomes per session, if it does so at all."""
        if isinstance(self._proposer, LimitsFanOut):
            self._proposer.limit_fan_out(most)

    def stats(self) -> EngineStats:
        """Counts since the start."""
        return replace(self._engine.stats)

    def connected(self, peer: Router) -> None:
        """A router's stream began; its frames will tell of sessions."""

    def received(self, peer: Router, frame: SessionFrame) -> None:
        """Queues a router's news."""
        self._inbox.put(Arrival(peer, frame, time.monotonic_ns()))

    def disconnected(self, peer: Router) -> None:
        """Closes all of a router's sessions."""
        self._inbox.put(Departure(peer))
