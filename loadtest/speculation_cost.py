"""What speculation costs the engine's thread in each step, by requests.

    python -m loadtest.speculation_cost
    python -m loadtest.speculation_cost --cold --requests 8

What the scheduler calls of `specray.target.speculation` for a step without prefills, waits or
vLLM's own drafter, the planner's work included: before the step, and after it. Nine in ten
proposals are there when it is scheduled, and a token that is reached is accepted with a chance of
0.7. With all that it needs in the caches, as beside a GPU; `--cold` reads much else where the model
computes, as the core of a CPU target does.

Learning has its place while a GPU computes, and is a part of the step where a CPU does: it counts
between steps with `--cold` only. It is done for several steps at once, so that of all it is the
mean that says what a step takes.
"""

import argparse
import json
import random
import statistics
import sys
import time
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
CONTEXT = PROMPT + ANSWER
VOCABULARY = 300  # few, so that texts repeat themselves now and then
STEP_S, TOKEN_S = 0.02, 1e-5  # of the simulated engine
CONFIDENCES = (0.8, 0.7, 0.6, 0.5, 0.4)
SHARE_HERE, SHARE_ACCEPTED = 0.9, 0.7
SEEN, STEPS = 60, 60  # steps, of which the first are not counted
WEIGHTS = 256 * 2**20  # bytes, more than caches hold
ROUTER = "router"
LEARNING = "learning"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", default="1,8,64", metavar="N,N,...")
    parser.add_argument("--cold", action="store_true", help="read much else in each step")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print("microseconds a step: medians, of learning the mean")
    for num_requests in map(int, args.requests.split(",")):
        rows.append({"requests": num_requests} | measure(num_requests, is_cold=args.cold))
        print(json.dumps(rows[-1]))
    if args.json:
        meta = collect_meta(sys.argv[1:], "python -m loadtest.speculation_cost")
        args.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")


def measure(num_requests: int, *, is_cold: bool) -> dict[str, float]:
    engine = Engine(num_requests, WEIGHTS if is_cold else 0)
    steps = []
    for _ in range(SEEN + STEPS):
        engine.receive()
        steps.append(engine.step())
    counted = steps[SEEN:]
    times = {name: us(statistics.median(step[name] for step in counted)) for name in counted[0]}
    times[LEARNING] = us(statistics.mean(step[LEARNING] for step in counted))
    between = sum(times.values()) - (0.0 if is_cold else times[LEARNING])
    return times | {"between steps": round(between, 1), "mean depth": round(engine.mean_depth, 2)}


def us(seconds: float) -> float:
    return round(1e6 * seconds, 1)


class Streams:
    """A router that is always there, and hears nothing."""

    policy = SpeculationPolicy(max_depth=DEPTH, max_wait_ms=10.0)

    def choose_router(self) -> str:
        return ROUTER

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
    """Decodes simulated requests on a clock of its own; what specray does takes real time."""

    def __init__(self, num_requests: int, num_bytes: int) -> None:
        self._now = 0.0
        self._weights = np.ones(num_bytes // 4, np.float32)
        self._rng = random.Random(0)
        self._buffer = ProposalBuffer(VOCABULARY, DEPTH, self._clock)
        self._speculation = Speculation(self._buffer, Streams(), self._clock)
        self._sessions = [self._open(number) for number in range(num_requests)]
        self._num_steps = self._num_verified = 0  # and draft tokens in them

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

    @property
    def mean_depth(self) -> float:
        """Draft tokens that a step has verified of a request."""
        return self._num_verified / self._num_steps / len(self._sessions)

    def step(self) -> dict[str, float]:
        """Schedules, computes and books a step; the seconds that each part has taken."""
        began = time.perf_counter()
        chosen = self._schedule()
        scheduled = time.perf_counter()
        self._weights.sum()
        accepted = {i: self._num_accepted(proposal) for i, proposal in chosen.items()}
        computed = time.perf_counter()
        self._speculation.learn()
        learnt = time.perf_counter()
        for i, num_accepted in accepted.items():
            num_proposed = len(chosen[i].token_ids)
            source = chosen[i].source
            self._speculation.observe_verification(i, source, num_proposed, num_accepted)
        observed = time.perf_counter()
        lengths = {session.session_id: len(session.token_ids) for session in self._sessions}
        load = self._grow(chosen, accepted)
        grown = time.perf_counter()
        self._book(load, lengths, len(lengths) + sum(accepted.values()))
        return {
            "before a step": scheduled - began,
            LEARNING: learnt - computed,
            "verifications": observed - learnt,
            "commits": time.perf_counter() - grown,
        }

    def _schedule(self) -> dict[int, Proposal]:
        ids = [session.session_id for session in self._sessions]
        self._speculation.expect(Surroundings(num_kv_tokens=CONTEXT * len(ids)))
        wait = self._speculation.begin_wait(ids, 0, may_wait=True)
        if wait is not None:
            self._speculation.end_wait(wait)  # at once: what waits bring is not what is measured
        return self._speculation.choose(ids, 0)

    def _grow(self, chosen: dict[int, Proposal], accepted: dict[int, int]) -> StepLoad:
        """Adds what the step has made; what the step held."""
        for session in self._sessions:
            i = session.session_id
            assert isinstance(session.token_ids, list)
            session.token_ids += chosen[i].token_ids[: accepted[i]] if i in chosen else ()
            session.token_ids += self._tokens(1)
        num_requests = len(self._sessions)
        num_verified = sum(len(proposal.token_ids) for proposal in chosen.values())
        self._num_steps += 1
        self._num_verified += num_verified
        return StepLoad(num_requests, num_requests + num_verified, CONTEXT * num_requests)

    def _book(self, load: StepLoad, lengths: dict[int, int], num_committed: int) -> None:
        seconds = STEP_S + TOKEN_S * load.num_tokens
        self._now += seconds
        self._speculation.observe_step(load, load.num_requests, num_committed, seconds)
        self._speculation.commit(lengths, 0)

    def _open(self, number: int) -> Session:
        tokens = self._tokens(CONTEXT)
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


if __name__ == "__main__":
    main()
