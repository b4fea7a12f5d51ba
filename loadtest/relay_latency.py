"""Round trip of commits, on both data paths: target -> relay -> draft and back, target <-> draft.

Target, router and draft are processes of their own, on loopback; rounds of the two take turns:
`python -m loadtest.relay_latency --sessions 16`. The floor is one stream with nothing behind it.
"""

import argparse
import asyncio
import multiprocessing
import queue
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import get_args

import numpy as np

from specray.router.relay import Relay
from specray.target.buffer import Offer, ProposalBuffer
from specray.target.direct import DirectPath
from specray.target.service import RouterStreams
from specray.types import (
    Commit,
    DataPath,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
    SpeculationPolicy,
    TruncatedDistributions,
)
from specray.wire.client import connect_draft, get_stats_blocking
from specray.wire.server import Peer, serve_draft, serve_target
from specray.wire.stats import RelayStats

DEPTH, SUPPORT = 5, 32
STEP_S = 0.020  # a verification, as on a GPU
STALL_TIMEOUT_S = 10.0
ROUTER = "router"
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


class Arrivals(ProposalBuffer):
    """Tells the measuring thread what has arrived, as a target's engine finds it in its buffer."""

    def __init__(self) -> None:
        super().__init__(SUPPORT, DEPTH)
        self.proposals: queue.SimpleQueue[Proposal] = queue.SimpleQueue()

    def offer(self, proposal: Proposal, _router: str) -> Offer:
        self.proposals.put(proposal)
        return Offer.LATE  # and so is not audited: that takes its time on both ways


class Target:
    """A target's end of the streams."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        direct = partial(DirectPath, "latency", STALL_TIMEOUT_S)
        self.streams = RouterStreams(self.arrivals, SpeculationPolicy(), direct=direct)
        self.server = serve_target(self.streams, self.streams, "127.0.0.1")


class Path:
    """A target, a router and what is between the target and the draft."""

    def __init__(self, data_path: DataPath, draft: str, num_sessions: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        self.data_path, self._num_sessions = data_path, num_sessions
        self.times: list[float] = []
        self.target = Target()
        arguments = (there, data_path, self.target.server.address, draft)
        self.router = spawn.Process(target=_run_router, args=arguments, daemon=True)
        self.router.start()
        here.recv()
        sampling = SamplingSettings()
        opens = tuple(OpenSession(i, (1, 2, 3), 3, sampling, DEPTH) for i in range(num_sessions))
        self.target.streams.send(ROUTER, SessionFrame(opens=opens))

    def run(self, num_rounds: int) -> None:
        """Measure."""
        for _ in range(num_rounds):
            started = time.perf_counter()
            self.target.streams.send(ROUTER, _commits(self._num_sessions))
            for _ in range(self._num_sessions):
                self.target.arrivals.proposals.get(timeout=5)
            self.times.append(time.perf_counter() - started)

    def stop(self) -> None:
        """End all."""
        self.router.terminate()
        self.router.join()
        self.target.server.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5, help="that the rounds are split into")
    parser.add_argument("--sessions", type=int, default=1, help="requests in each frame")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    draft = spawn.Process(target=_run_draft, args=(there,), daemon=True)
    draft.start()
    address = here.recv()
    floor = asyncio.run(_floor(address, options.sessions, options.rounds))
    paths = [Path(name, address, options.sessions) for name in get_args(DataPath)]
    for _ in range(options.turns):
        for path in paths:
            path.run(options.rounds // options.turns)
    _report("floor", floor)
    for path in paths:
        _report(path.data_path, path.times)
        path.stop()
    relay, direct = (np.percentile(path.times, (50, 99)) for path in paths)
    for name, cost in zip(("p50", "p99"), relay - direct, strict=True):
        share = cost / STEP_S
        print(f"what the relay adds, {name}: {cost * 1e6:.0f} us, {share:.1%} of a step of 20 ms")
    draft.terminate()


def _run_draft(pipe: Connection) -> None:
    server = serve_draft(EchoDraft(), "127.0.0.1")
    pipe.send(server.address)
    time.sleep(3600)


def _run_router(pipe: Connection, data_path: DataPath, target: str, draft: str) -> None:
    relay = Relay(ROUTER, STALL_TIMEOUT_S, data_path)
    relay.start()
    relay.update_replicas([target], [draft])
    while not _is_connected(relay, data_path, target):
        time.sleep(0.01)
    pipe.send("connected")
    time.sleep(3600)


def _is_connected(relay: Relay, data_path: DataPath, target: str) -> bool:
    stats: RelayStats | None = relay.snapshot()
    if not relay.snapshot().connected_targets:
        return False
    if data_path == "direct":
        stats = get_stats_blocking(target).direct
    return stats is not None and bool(stats.connected_drafts)


async def _floor(draft: str, num_sessions: int, num_rounds: int) -> list[float]:
    stream = await connect_draft(draft, "floor")
    times = []
    for _ in range(num_rounds):
        started = time.perf_counter()
        stream.send(_commits(num_sessions))
        await anext(stream)
        times.append(time.perf_counter() - started)
    await stream.close()
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
