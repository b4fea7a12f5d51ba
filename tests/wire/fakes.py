"""Synchronous users of the servers, whose every event a test can wait for."""

import queue
from typing import Any, Generic, NamedTuple, TypeVar

from specray.errors import ProtocolError
from specray.types import SpeculationPolicy
from specray.wire.server import Peer
from specray.wire.stats import TargetStats

In = TypeVar("In")
Out = TypeVar("Out")

PATIENCE_S = 5.0


class Received(NamedTuple, Generic[In, Out]):
    peer: Peer[Out]
    frame: In


class RecordingHandler(Generic[In, Out]):
    """A draft or a target of which the test plays the engine."""

    def __init__(self) -> None:
        self.reject_frames = False  # whether a frame breaks its stream
        self._peers: queue.SimpleQueue[Peer[Out]] = queue.SimpleQueue()
        self._gone: queue.SimpleQueue[Peer[Out]] = queue.SimpleQueue()
        self._frames: queue.SimpleQueue[Received[In, Out]] = queue.SimpleQueue()

    def connected(self, peer: Peer[Out]) -> None:
        self._peers.put(peer)

    def received(self, peer: Peer[Out], frame: In) -> None:
        if self.reject_frames:
            raise ProtocolError("the test rejects this frame")
        self._frames.put(Received(peer, frame))

    def disconnected(self, peer: Peer[Out]) -> None:
        self._gone.put(peer)

    def peer(self) -> Peer[Out]:
        return self._peers.get(timeout=PATIENCE_S)

    def gone(self) -> Peer[Out]:
        return self._gone.get(timeout=PATIENCE_S)

    def news(self) -> Received[In, Out]:
        return self._frames.get(timeout=PATIENCE_S)

    def frame(self) -> In:
        return self.news().frame

    @property
    def num_frames(self) -> int:
        return self._frames.qsize()

    @property
    def num_gone(self) -> int:
        return self._gone.qsize()


class RecordingPeer(Generic[Out]):
    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[Out] = []

    def send(self, frame: Out) -> None:
        self.sent.append(frame)


class RecordingControl:
    def __init__(self) -> None:
        self.policies: list[SpeculationPolicy] = []
        self.counters = TargetStats()

    def configure(self, policy: SpeculationPolicy) -> None:
        self.policies.append(policy)

    def stats(self) -> TargetStats:
        return self.counters


class RecordedTimeline:
    """Keeps what it is told: names and facts, no times."""

    is_on = True

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def span(self, name: str, started_s: float, **facts: Any) -> None:
        self.events.append((name, facts))

    def mark(self, name: str, **facts: Any) -> None:
        self.events.append((name, facts))
