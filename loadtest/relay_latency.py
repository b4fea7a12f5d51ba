"""Round trip of one commit: target -> relay -> draft and back, against target <-> draft directly.

Everything runs in this process, on loopback: `python loadtest/relay_latency.py`.
"""

import argparse
import asyncio
import queue
import time

import numpy as np

from specray.router.relay import Relay
from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
    TruncatedDistributions,
)
from specray.wire.client import connect_draft
from specray.wire.server import Peer, RunningServer, serve_draft, serve_target
from specray.wire.stats import TargetStats

DEPTH, SUPPORT = 5, 32
ROWS = TruncatedDistributions(
    np.zeros((DEPTH, SUPPORT), np.int32), np.full((DEPTH, SUPPORT), 1 / SUPPORT, np.float32)
)


class EchoDraft:
    """Answers every commit at once."""

    def connected(self, peer: Peer[ProposalFrame]) -> None: ...

    def disconnected(self, peer: Peer[ProposalFrame]) -> None: ...

    def received(self, peer: Peer[ProposalFrame], frame: SessionFrame) -> None:
        answers = tuple(_answer(commit) for commit in frame.commits)
        if answers:
            peer.send(ProposalFrame(answers))


class WaitingTarget:
    """Hands what arrives to the measuring thread, as a target hands it to its engine."""

    def __init__(self) -> None:
        self.peers: queue.SimpleQueue[Peer[SessionFrame]] = queue.SimpleQueue()
        self.frames: queue.SimpleQueue[ProposalFrame] = queue.SimpleQueue()

    def connected(self, peer: Peer[SessionFrame]) -> None:
        self.peers.put(peer)

    def disconnected(self, peer: Peer[SessionFrame]) -> None: ...

    def received(self, peer: Peer[SessionFrame], frame: ProposalFrame) -> None:
        self.frames.put(frame)

    def configure(self, policy: object) -> None: ...

    def stats(self) -> TargetStats:
        return TargetStats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=1, help="requests in each frame")
    options = parser.parse_args()
    draft = serve_draft(EchoDraft(), "127.0.0.1")
    try:
        direct = asyncio.run(_direct(draft, options.sessions, options.rounds))
        _report("direct, grpc.aio client", direct)
        _report("through the relay", _relayed(draft, options.sessions, options.rounds))
    finally:
        draft.stop(0)


async def _direct(draft: RunningServer, num_sessions: int, num_rounds: int) -> list[float]:
    stream = await connect_draft(draft.address, "latency")
    times = []
    for _ in range(num_rounds):
        started = time.perf_counter()
        stream.send(_commits(num_sessions))
        await anext(stream)
        times.append(time.perf_counter() - started)
    await stream.close()
    return times


def _relayed(draft: RunningServer, num_sessions: int, num_rounds: int) -> list[float]:
    handler = WaitingTarget()
    target = serve_target(handler, handler, "127.0.0.1")
    relay = Relay("latency", stall_timeout_s=10)
    relay.start()
    relay.update_replicas([target.address], [draft.address])
    peer = handler.peers.get(timeout=5)
    while not relay.snapshot().connected_drafts:
        time.sleep(0.01)
    sampling = SamplingSettings()
    opens = tuple(OpenSession(i, (1, 2, 3), 3, sampling, DEPTH) for i in range(num_sessions))
    peer.send(SessionFrame(opens=opens))
    times = []
    for _ in range(num_rounds):
        started = time.perf_counter()
        peer.send(_commits(num_sessions))
        handler.frames.get(timeout=5)
        times.append(time.perf_counter() - started)
    relay.stop()
    target.stop(0)
    return times


def _commits(num_sessions: int) -> SessionFrame:
    now = time.monotonic_ns()
    return SessionFrame(
        commits=tuple(Commit(i, 100, (1, 2, 3), DEPTH, now) for i in range(num_sessions))
    )


def _answer(commit: Commit) -> Proposal:
    token_ids = tuple(range(DEPTH))
    position = commit.position + len(commit.token_ids)
    return Proposal(
        commit.session_id, position, 3, token_ids, "model", ROWS, commit.sent_at_ns, 100
    )


def _report(name: str, times: list[float]) -> None:
    p50, p99 = np.percentile(times, (50, 99)) * 1e6
    print(f"{name:26} p50 {p50:7.0f} us   p99 {p99:7.0f} us   ({len(times)} round trips)")


if __name__ == "__main__":
    main()
