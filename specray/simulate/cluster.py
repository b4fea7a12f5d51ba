"""M targets and N drafts under a stream of requests."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import simpy

from specray.simulate.draft import Draft, DraftSettings, QueueWait, Work
from specray.simulate.network import Network, NetworkSettings
from specray.simulate.pools import DraftPool, PoolSettings, Size
from specray.simulate.requests import Request
from specray.simulate.target import Process, Step, Target, TargetSettings


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What is simulated."""

    target: TargetSettings
    draft: DraftSettings
    num_targets: int = 1
    num_drafts: int = 1  # to begin with
    pool: PoolSettings | None = None  # None: their number stays
    network: NetworkSettings = field(default_factory=NetworkSettings)


class DraftReport(NamedTuple):
    """What one draft did."""

    work: tuple[Work, ...]
    num_drafted: int
    waits: tuple[QueueWait, ...]  # of all proposals that were asked for and begun

    def busy_s(self, from_s: float = 0.0, until_s: float = math.inf) -> float:
        """How much of a time it worked."""
        return sum(work.seconds_within(from_s, until_s) for work in self.work)

    def queue_s(self, from_s: float = 0.0, until_s: float = math.inf) -> list[float]:
        """How long each proposal that was begun in a time had been waited for."""
        return [wait.seconds for wait in self.waits if from_s <= wait.ended_s <= until_s]


class Run(NamedTuple):
    """What happened."""

    ended_s: float
    requests: tuple[Request, ...]
    steps: tuple[tuple[Step, ...], ...]  # by target
    drafts: tuple[DraftReport, ...]
    sizes: tuple[Size, ...] = ()  # of the draft pool, if it follows the load


def simulate(
    settings: ClusterSettings,
    requests: Sequence[Request],
    *,
    until_s: float | None = None,
    num_at_once: int | None = None,
    seed: int = 0,
) -> Run:
    """Run the requests through the cluster.

    Args:
        settings: the cluster.
        requests: fresh ones, ascending by arrival; they are filled in.
        until_s: when to stop; None: when all have finished.
        num_at_once: keep so many in flight instead of letting them arrive at their times.
        seed: of everything that the requests do not bring along.
    """
    env = simpy.Environment()
    network = Network(env, settings.network)
    numbered = {request.number: request for request in requests}
    targets = [
        Target(env, f"target-{n}", settings.target, network) for n in range(settings.num_targets)
    ]

    def make_draft(name: str) -> Draft:
        return Draft(env, name, settings.draft, numbered, network.send_to_targets, seed)

    pool = DraftPool(env, settings.pool or PoolSettings(), network, targets, make_draft)
    for _ in range(settings.num_drafts):
        pool.add()
    if settings.pool is not None:
        env.process(pool.run())
    balancer = _Balancer(targets, np.random.default_rng([seed, 5]))
    if num_at_once is None:
        env.process(_arrive(env, requests, balancer))
    else:
        queue = iter(requests)
        for _ in range(num_at_once):
            env.process(_work(env, queue, balancer))
    env.run(until_s)
    return Run(
        float(env.now) if until_s is not None else _last_end(targets),
        tuple(requests),
        tuple(tuple(target.steps) for target in targets),
        tuple(DraftReport(tuple(d.work), d.num_drafted, tuple(d.waits)) for d in pool.drafts),
        tuple(pool.sizes),
    )


class _Balancer:
    """Hands each request to the less busy of two random targets, as Ray Serve does."""

    def __init__(self, targets: Sequence[Target], rng: np.random.Generator) -> None:
        self._targets = targets
        self._rng = rng

    def add(self, request: Request) -> simpy.Event:
        """Returns what happens when the request has finished."""
        num = len(self._targets)
        chosen = self._rng.choice(num, size=min(2, num), replace=False)
        target = min((self._targets[n] for n in chosen), key=lambda target: target.num_ongoing)
        return target.add(request)


def _arrive(env: simpy.Environment, requests: Sequence[Request], balancer: _Balancer) -> Process:
    for request in requests:
        yield env.timeout(max(0.0, request.arrived_s - env.now))
        balancer.add(request)


def _work(env: simpy.Environment, queue: Iterator[Request], balancer: _Balancer) -> Process:
    """One client of a closed loop: the next request when the one before has finished."""
    for request in queue:
        request.arrived_s = float(env.now)
        yield balancer.add(request)


def _last_end(targets: Sequence[Target]) -> float:
    ends = [target.steps[-1].ended_s for target in targets if target.steps]
    return max(ends, default=0.0)
