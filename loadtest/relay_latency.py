"""Round trip of commits: target -> relay -> draft and back, against target <-> draft directly.

Target, relay and draft are processes of their own, on loopback:
`python -m loadtest.relay_latency --sessions 16`.
"""

import argparse
import asyncio
import multiprocessing
import queue
import time
from multiprocessing.connection import Connection

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
from specray.wire.server import Peer, serve_draft, serve_target
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

    def received(self, _peer: Peer[SessionFrame], frame: ProposalFrame) -> None:
        self.frames.put(frame)

    def configure(self, policy: object) -> None: ...

    def stats(self) -> TargetStats:
        return TargetStats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=1, help="requests in each frame")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    draft = spawn.Process(target=_run_draft, args=(there,), daemon=True)
    draft.start()
    address = here.recv()
    direct = asyncio.run(_direct(address, options.sessions, options.rounds))
    _report("direct, grpc.aio client", direct)
    handler = WaitingTarget()
    target = serve_target(handler, handler, "127.0.0.1")
    relay = spawn.Process(target=_run_relay, args=(there, target.address, address), daemon=True)
    relay.start()
    here.recv()
    _report("through the relay", _relayed(handler, options.sessions, options.rounds))
    relay.terminate()
    draft.terminate()
    target.stop(0)


def _run_draft(pipe: Connection) -> None:
    server = serve_draft(EchoDraft(), "127.0.0.1")
    pipe.send(server.address)
    time.sleep(3600)


def _run_relay(pipe: Connection, target: str, draft: str) -> None:
    relay = Relay("latency", stall_timeout_s=10)
    relay.start()
    relay.update_replicas([target], [draft])
    while not (relay.snapshot().connected_drafts and relay.snapshot().connected_targets):
        time.sleep(0.01)
    pipe.send("connected")
    time.sleep(3600)


async def _direct(draft: str, num_sessions: int, num_rounds: int) -> list[float]:
    stream = await connect_draft(draft, "latency")
    times = []
    for _ in range(num_rounds):
        started = time.perf_counter()
        stream.send(_commits(num_sessions))
        await anext(stream)
        times.append(time.perf_counter() - started)
    await stream.close()
    return times


def _relayed(handler: WaitingTarget, num_sessions: int, num_rounds: int) -> list[float]:
    peer = handler.peers.get(timeout=5)
    sampling = SamplingSettings()
    opens = tuple(OpenSession(i, (1, 2, 3), 3, sampling, DEPTH) for i in range(num_sessions))
    peer.send(SessionFrame(opens=opens))
    times = []
    for _ in range(num_rounds):
        started = time.perf_counter()
        peer.send(_commits(num_sessions))
        handler.frames.get(timeout=5)
        times.append(time.perf_counter() - started)
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
