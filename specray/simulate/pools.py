"""A draft pool that follows the load, decided on by the service's own slow loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import simpy

from specray.config import ObjectiveConfig
from specray.control.pools import MOST_DRAFTS
from specray.control.reports import TargetReporter
from specray.control.slow_loop import ByHand, SlowLoop
from specray.draft.report import DraftReporter
from specray.simulate.draft import Draft
from specray.simulate.network import Network
from specray.simulate.target import Process, Target

_POOL = "draft"
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How a draft pool is resized; delays are Ray Serve's part."""

    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    period_s: float = 10.0
    min_drafts: int = 0
    max_drafts: int = MOST_DRAFTS
    start_s: float = 0.0  # until a new draft takes sessions


class Size(NamedTuple):
    """Drafts that are there after a decision."""

    at_s: float
    num_drafts: int


class DraftPool:
    """Adds and removes drafts as the slow loop wants them."""

    def __init__(
        self,
        env: simpy.Environment,
        settings: PoolSettings,
        network: Network,
        targets: Sequence[Target],
        make: Callable[[str], Draft],
    ) -> None:
        """Takes the cluster; `run` is its process.

        Args:
            env: the simulation.
            settings: when and how far.
            network: which drafts are connected to.
            targets: whose reports are decided by.
            make: a draft of a name.
        """
        clock = lambda: float(env.now)  # noqa: E731 - too small for a name of its own
        self.drafts: list[Draft] = []  # all that there ever were
        self.sizes: list[Size] = []
        self._env = env
        self._settings = settings
        self._network = network
        self._make = make
        self._targets = [(target, TargetReporter("target", clock)) for target in targets]
        self._here: dict[str, tuple[Draft, DraftReporter]] = {}
        self._num_starting = 0
        self._max_wait_s = targets[0].max_wait_s
        self._clock = clock
        self._loop = SlowLoop(settings.objective, _POOL, _DEPTH, 0, settings.max_drafts, clock)

    def add(self) -> None:
        """A draft that is there from now on."""
        name = f"draft-{len(self.drafts)}"
        draft = self._make(name)
        self.drafts.append(draft)
        self._network.add_draft(name, draft.take)
        self._here[name] = draft, DraftReporter(_POOL, self._clock)

    def run(self) -> Process:
        """Decides every period."""
        while True:
            yield self._env.timeout(self._settings.period_s)
            wanted = self._wanted()
            for _ in range(wanted - len(self._here) - self._num_starting):
                self._num_starting += 1
                self._env.process(self._start())
            while len(self._here) > wanted:
                self._remove()
            self.sizes.append(Size(float(self._env.now), len(self._here)))

    def _wanted(self) -> int:
        targets = [reporter.report(target.stats()) for target, reporter in self._targets]
        drafts = [reporter.report(replace(draft.stats)) for draft, reporter in self._here.values()]
        decisions = self._loop.decide(targets, drafts, ByHand(), self._max_wait_s)
        value = decisions.num_replicas[_POOL].value
        return min(max(value, self._settings.min_drafts), self._settings.max_drafts)

    def _start(self) -> Process:
        yield self._env.timeout(self._settings.start_s)
        self._num_starting -= 1
        self.add()

    def _remove(self) -> None:
        name = next(reversed(self._here))
        draft, _ = self._here.pop(name)
        self._network.remove_draft(name)
        draft.stop()
