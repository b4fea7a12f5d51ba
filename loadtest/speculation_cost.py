"""What speculation costs the engine's thread in each step, by requests.

    python -m loadtest.speculation_cost
    python -m loadtest.speculation_cost --cold --requests 8

All of `specray.target.speculation` that stands between two steps, the planner's work included:
nine in ten proposals are there when their step is scheduled, and seven in ten of their tokens are
accepted. With all that it needs in the caches, as beside a GPU; `--cold` with none of it, as on the
core of a CPU target. Learning is apart: the wait for the device is the time for it.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from specray.cli.bench.report import collect_meta
from specray.control.planner import Surroundings
from specray.control.roofline import StepLoad
from specray.target.buffer import ProposalBuffer
from specray.target.session import Session
from specray.target.speculation import Speculation
from specray.types import Proposal, SamplingSettings, SessionFrame, SpeculationPolicy

DEPTH = 5
PROMPT, ANSWER = 400, 100  # tokens of a request when it is first seen
VOCABULARY = 300  # few, so that texts repeat themselves now and then
STEP_S, TOKEN_S = 0.02, 1e-5  # of the simulated engine
CONFIDENCES = (0.8, 0.7, 0.6, 0.5, 0.4)
SHARE_HERE, SHARE_ACCEPTED = 0.9, 0.7
SEEN, STEPS = 60, 60  # steps, of which the first are not counted
WEIGHTS = 256 * 2**20  # bytes, more than caches hold
ROUTER = "router"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", default="1,8,64", metavar="N,N,...")
    parser.add_argument("--cold", action="store_true", help="before each step reading much else")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print("microseconds a step, medians")
    for num_requests in map(int, args.requests.split(",")):
        rows.append({"requests": num_requests} | measure(num_requests, is_cold=args.cold))
        print(json.dumps(rows[-1]))
    if args.json:
        meta = collect_meta([]) | {"command": command()}
        args.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")


def measure(num_requests: int, *, is_cold: bool) -> dict[str, float]:
    engine = Engine(num_requests)
    weights = np.ones(WEIGHTS // 4 if is_cold else 1, np.float32)
    times: dict[str, list[float]] = defaultdict(list)
    depths = []
    for step in range(SEEN + STEPS):
        engine.receive()
        weights.sum()
        spent = engine.step()
        if step >= SEEN:
            depths.append(engine.num_verified / num_requests)
            for name, seconds in (spent | {"between steps": between(spent)}).items():
                times[name].append(seconds)
    medians = {name: round(1e6 * statistics.median(s), 1) for name, s in times.items()}
    return medians | {"mean depth": round(statistics.mean(depths), 2)}


def between(spent: dict[str, float]) -> float:
    return sum(seconds for name, seconds in spent.items() if name != "learning")


class Streams:
    """A router that is always there, and hears nothing."""

    policy = SpeculationPolicy(max_depth=DEPTH, max_wait_ms=10.0)

    def is_connected(self, router: str) -> bool:
        return router == ROUTER

    def trusts(self, router: str) -> bool:
        return router == ROUTER

    def send(self, router: str, frame: SessionFrame) -> None:
        pass

    def take_lost(self) -> list[int]:
        return []

    def take_departed(self) -> list[str]:
        return []


class Engine:
    """Decodes simulated requests on a clock of its own; only what specray does takes real time."""

    def __init__(self, num_requests: int) -> None:
        self._now = 0.0
        self._rng = random.Random(0)
        self._buffer = ProposalBuffer(VOCABULARY, DEPTH, self._clock)
        self._speculation = Speculation(self._buffer, Streams(), self._clock)
        self._sessions = [self._open(number) for number in range(num_requests)]
        self.num_verified = 0  # draft tokens of the latest step

    def receive(self) -> None:
        """The proposals that are there in time."""
        self._now += 1e-3
        for session in self._sessions:
            if session.wanted_depth and self._rng.random() < SHARE_HERE:
                length, last = len(session.token_ids), session.token_ids[-1:][0]
                self._buffer.offer(
                    Proposal(
                        *(session.session_id, length, last),
                        tuple(self._tokens(session.wanted_depth)),
                        "model",
                        confidences=CONFIDENCES[: session.wanted_depth],
                    ),
                    ROUTER,
                )

    def step(self) -> dict[str, float]:
        """Schedules, computes and books a step; the seconds that each part has taken."""
        speculation, ids = self._speculation, [s.session_id for s in self._sessions]
        num_kv_tokens = sum(len(session.token_ids) for session in self._sessions)
        began = time.perf_counter()
        speculation.expect(Surroundings(num_kv_tokens=num_kv_tokens))
        wait = speculation.begin_wait(ids, 0, may_wait=True)
        if wait is not None:
            speculation.end_wait(wait)  # at once: what a wait brings is not what is measured
        chosen = speculation.choose(ids, 0)
        scheduled = time.perf_counter()
        speculation.learn()
        learnt = time.perf_counter()
        accepted = {i: self._num_accepted(proposal) for i, proposal in chosen.items()}
        self.num_verified = sum(len(proposal.token_ids) for proposal in chosen.values())
        seconds = STEP_S + TOKEN_S * self.num_verified
        self._now += seconds
        verified = time.perf_counter()
        for i, num_accepted in accepted.items():
            num_proposed = len(chosen[i].token_ids)
            speculation.observe_verification(i, chosen[i].source, num_proposed, num_accepted)
        observed = time.perf_counter()
        lengths = {session.session_id: len(session.token_ids) for session in self._sessions}
        for session in self._sessions:
            i = session.session_id
            assert isinstance(session.token_ids, list)
            session.token_ids += chosen[i].token_ids[: accepted[i]] if i in chosen else ()
            session.token_ids += self._tokens(1)
        num_committed = len(ids) + sum(accepted.values())
        load = StepLoad(len(ids), len(ids) + self.num_verified, num_kv_tokens)
        grown = time.perf_counter()
        speculation.observe_step(load, len(ids), num_committed, seconds, is_decode_only=True)
        speculation.commit(lengths, 0)
        return {
            "before a step": scheduled - began,
            "learning": learnt - scheduled,
            "verifications": observed - verified,
            "commits": time.perf_counter() - grown,
        }

    def _open(self, number: int) -> Session:
        tokens = self._tokens(PROMPT + ANSWER)
        session = Session(
            *(number, ROUTER, tokens, PROMPT, 10**6, DEPTH, SamplingSettings()),
            uses_distributions=False,
        )
        self._speculation.open(session)
        return session

    def _clock(self) -> float:
        return self._now

    def _tokens(self, number: int) -> list[int]:
        return [self._rng.randrange(VOCABULARY) for _ in range(number)]

    def _num_accepted(self, proposal: Proposal) -> int:
        drawn = (self._rng.random() < SHARE_ACCEPTED for _ in proposal.token_ids)
        return next(
            (i for i, is_accepted in enumerate(drawn) if not is_accepted), len(proposal.token_ids)
        )


def command() -> str:
    return " ".join(["python -m loadtest.speculation_cost", *sys.argv[1:]])


if __name__ == "__main__":
    main()
