"""Round trip of commits, on both data paths: target -> relay -> draft and back, target <-> draft.

Target, router and draft are processes of their own, on loopback; rounds of the two take turns:
`python -m loadtest.relay_latency --sessions 1,16 --json FILE`. The floor is one stream with nothing
behind it.
"""

import argparse
import asyncio
import json
import multiprocessing
import pathlib
import queue
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, get_args

import numpy as np

from specray.cli.bench.report import collect_meta
from specray.router.relay import Relay
from specray.target.buffer import ProposalBuffer, Verdict
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
from specray.wire.client import connect_draft, get_stats
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

    def offer_all(self, proposals: Sequence[Proposal], _router: str) -> list[Verdict]:
        for proposal in proposals:
            self.proposals.put(proposal)
        # Nothing of it is used, and so not audited: that takes its time on both ways.
        return [Verdict.STALE] * len(proposals)


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
    parser.add_argument("--sessions", default="1,16", help="requests in each frame, one run each")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the figures")
    options = parser.parse_args()
    meta = collect_meta(sys.argv[1:], "python -m loadtest.relay_latency")
    result: dict[str, Any] = {"meta": meta, "step_us": STEP_S * 1e6, "runs": []}
    for num_sessions in map(int, options.sessions.split(",")):
        times = _measure(num_sessions, options.rounds, options.turns)
        result["runs"].append({"sessions": num_sessions} | _summarise(times))
        _print(result["runs"][-1])
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def _measure(num_sessions: int, num_rounds: int, num_turns: int) -> dict[str, list[float]]:
    """Seconds of each round trip, by data path."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    draft = spawn.Process(target=_run_draft, args=(there,), daemon=True)
    draft.start()
    address = here.recv()
    with ProcessPoolExecutor(1, spawn) as executor:
        floor = executor.submit(_run_floor, address, num_sessions, num_rounds).result()
    paths = [Path(name, address, num_sessions) for name in get_args(DataPath)]
    for _ in range(num_turns):
        for path in paths:
            path.run(num_rounds // num_turns)
    for path in paths:
        path.stop()
    draft.terminate()
    return {"floor": floor} | {path.data_path: path.times for path in paths}


def _summarise(times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians and 99th percentiles in microseconds, and what the relay adds to a step."""
    tails = {name: np.percentile(values, (50, 99)) * 1e6 for name, values in times.items()}
    added = tails["relay"] - tails["direct"]
    return {
        "round_trips": {name: len(values) for name, values in times.items()},
        "us": {name: _tail(values) for name, values in tails.items()},
        "relay_adds_us": _tail(added),
        "relay_adds_share_of_step": _tail(added / (STEP_S * 1e6), 4),
    }


def _tail(values: Any, digits: int = 0) -> dict[str, float]:
    return {"p50": round(float(values[0]), digits), "p99": round(float(values[1]), digits)}


def _print(run: dict[str, Any]) -> None:
    print(f"{run['sessions']} sessions")
    for name, tail in run["us"].items():
        print(f"  {name:8} p50 {tail['p50']:6.0f} us  p99 {tail['p99']:6.0f} us")
    for name, share in run["relay_adds_share_of_step"].items():
        cost = run["relay_adds_us"][name]
        print(f"  what the relay adds, {name}: {cost:.0f} us, {share:.1%} of a step of 20 ms")


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
    stats: RelayStats | None = asyncio.run(relay.snapshot())
    if stats is None or not stats.connected_targets:
        return False
    if data_path == "direct":
        stats = asyncio.run(get_stats(target)).direct
    return stats is not None and bool(stats.connected_drafts)


def _run_floor(draft: str, num_sessions: int, num_rounds: int) -> list[float]:
    return asyncio.run(_floor(draft, num_sessions, num_rounds))


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


if __name__ == "__main__":
    main()
