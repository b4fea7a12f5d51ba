"""What waits for the draft's engine: a bounded queue from the wire's thread."""

import threading
from typing import NamedTuple

from specray.types import ProposalFrame, SessionFrame
from specray.wire.server import Peer

MAX_FRAMES = 1024  # 20 s of steps or more: an engine that lags so far serves nobody

Router = Peer[ProposalFrame]


class Arrival(NamedTuple):
    """A frame from a router."""

    router: Router
    frame: SessionFrame
    arrived_ns: int  # monotonic


class Departure(NamedTuple):
    """A router whose sessions are over: its stream has ended, or its frames were refused."""

    router: Router
    lost: frozenset[int] = frozenset()  # sessions named in refused frames
    is_connected: bool = False


Delivery = Arrival | Departure


class Inbox:
    """Deliveries in order, from any thread to one.

    When it is full, the router whose frame comes next loses all its frames and sessions: it may
    open them again. The others lose nothing.
    """

    def __init__(self, max_frames: int = MAX_FRAMES) -> None:
        self._max_frames = max_frames
        self._changed = threading.Condition()
        self._deliveries: list[Delivery] = []
        self._is_closed = False

    def put(self, delivery: Delivery) -> None:
        """Queues a delivery; never blocks."""
        with self._changed:
            if isinstance(delivery, Arrival) and len(self._deliveries) >= self._max_frames:
                self._refuse(delivery)
            else:
                self._deliveries.append(delivery)
            self._changed.notify()

    def take(self, *, is_waiting: bool) -> list[Delivery] | None:
        """All deliveries; if `is_waiting`, at least one. None once the inbox is closed."""
        with self._changed:
            while is_waiting and not self._deliveries and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            deliveries, self._deliveries = self._deliveries, []
            return deliveries

    def close(self) -> None:
        """Ends the reader; what waits is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _refuse(self, arrival: Arrival) -> None:
        router = arrival.router
        refused = [d for d in self._deliveries if d.router is router] + [arrival]
        lost: frozenset[int] = frozenset()
        for delivery in refused:
            lost |= _sessions_of(delivery)
        self._deliveries = [d for d in self._deliveries if d.router is not router]
        self._deliveries.append(Departure(router, lost, is_connected=True))


def _sessions_of(delivery: Delivery) -> frozenset[int]:
    if isinstance(delivery, Departure):
        return delivery.lost
    opened = (session.session_id for session in delivery.frame.opens)
    return frozenset((*opened, *(commit.session_id for commit in delivery.frame.commits)))
