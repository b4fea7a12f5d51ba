"""The streams between targets and drafts: the router's own session table, and delays."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import simpy

from specray.router.sessions import SessionTable
from specray.types import ProposalFrame, SessionFrame, SpeculationPolicy

ROUTER = "router"

TakeSessions = Callable[[SessionFrame], None]
TakeProposals = Callable[[ProposalFrame], None]
_Frame = TypeVar("_Frame", SessionFrame, ProposalFrame)


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """One way between a target and a draft, through the router."""

    delay_s: float = 0.0002


class Network:
    """One router with streams to all targets and drafts; frames keep their order."""

    def __init__(self, env: simpy.Environment, settings: NetworkSettings) -> None:
        self._env = env
        self._settings = settings
        self._table = SessionTable(clock=lambda: float(env.now))
        self._targets: dict[str, TakeProposals] = {}
        self._drafts: dict[str, TakeSessions] = {}

    def add_draft(self, name: str, take: TakeSessions) -> None:
        """Connect a draft; it is handed sessions from now on."""
        self._drafts[name] = take
        self._table.add_draft(name)

    def remove_draft(self, name: str) -> None:
        """Disconnect a draft; targets open its sessions elsewhere."""
        del self._drafts[name]
        for target, frame in self._table.remove_draft(name, "draft_died").items():
            self._deliver(self._targets[target], frame)

    def add_target(self, name: str, take: TakeProposals) -> None:
        """Connect a target."""
        self._targets[name] = take

    def send_to_drafts(self, target: str, frame: SessionFrame) -> None:
        """A frame leaves a target."""
        for draft, part in self._table.from_target(target, frame).items():
            self._deliver(self._drafts[draft], part)

    def send_to_targets(self, draft: str, frame: ProposalFrame) -> None:
        """A frame leaves a draft."""
        for target, part in self._table.from_draft(draft, frame).items():
            self._deliver(self._targets[target], part)

    @property
    def round_trip_s(self) -> float:
        """From a target to a draft and back."""
        return 2 * self._settings.delay_s

    def _deliver(self, take: Callable[[_Frame], None], frame: _Frame) -> None:
        arrival = self._env.timeout(self._settings.delay_s)
        arrival.callbacks.append(lambda _: take(frame))


class TargetStreams:
    """What a target's `Speculation` sees of the network; see its protocol `Streams`."""

    def __init__(self, network: Network, target: str, policy: SpeculationPolicy) -> None:
        self.policy = policy
        self._network = network
        self._target = target
        self._lost: list[int] = []

    def choose_router(self) -> str:
        """Nobody comes past the routers."""
        return ""

    def is_connected(self, router: str) -> bool:
        """The simulated router never goes away."""
        return router == ROUTER

    def send(self, router: str, frame: SessionFrame) -> None:
        """Hand a frame to the network."""
        if self.is_connected(router):
            self._network.send_to_drafts(self._target, frame)

    def trusts(self, router: str) -> bool:
        """No distributions are simulated, so there is nothing to distrust."""
        return self.is_connected(router)

    def lose(self, session_ids: Iterable[int]) -> None:
        """Their draft has gone."""
        self._lost += session_ids

    def take_lost(self) -> list[int]:
        """Sessions whose draft has gone, since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def take_departed(self) -> list[str]:
        """No router leaves here."""
        return []
