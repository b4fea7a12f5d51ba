"""A target's own streams to the drafts that its routers name: `speculation.data_path: direct`."""

import asyncio
from collections.abc import Callable, Mapping

from specray.router.switch import Switch
from specray.types import ProposalFrame, SessionFrame
from specray.wire.stats import RelayStats


class DirectPath:
    """A router's switch, within the target: who is a target there is a router here.

    Routers keep the say: only drafts that one of them names are spoken to, and only for the
    requests of routers whose streams are up. Lives on the loop of the stream server, where all but
    `serves` and `send` are called.
    """

    def __init__(
        self,
        name: str,
        stall_timeout_s: float,
        deliver: Callable[[Mapping[str, ProposalFrame]], None],
    ) -> None:
        """Takes what drafts are to know it by, and who takes a frame for each router.

        Args:
            name: of the streams to the drafts.
            stall_timeout_s: a draft that owes a proposal for longer loses its sessions.
            deliver: takes what the drafts propose.
        """
        self._loop = asyncio.get_running_loop()
        self._switch = Switch(name, stall_timeout_s, deliver)
        self._drafts: dict[str, frozenset[str]] = {}  # by router
        self._switch.start()

    def name_drafts(self, router: str, drafts: frozenset[str]) -> None:
        """A router says which drafts there are; its requests go to them from now on."""
        self._drafts[router] = drafts
        self._follow()

    def remove(self, router: str) -> None:
        """A router's stream has ended: so do its sessions."""
        if self._drafts.pop(router, None) is not None:
            self._switch.remove_target(router)
            self._follow()

    def stats(self) -> RelayStats:
        """The counters since the start."""
        return self._switch.snapshot()

    def serves(self, router: str) -> bool:
        """Whether the router has named its drafts; from any thread."""
        return router in self._drafts

    def send(self, router: str, frame: SessionFrame) -> None:
        """Pass on what has become of a router's requests; from any thread."""
        self._loop.call_soon_threadsafe(self._forward, router, frame)

    def _forward(self, router: str, frame: SessionFrame) -> None:
        if router in self._drafts:  # else it has gone meanwhile, and nobody would close these
            self._switch.from_target(router, frame)

    def _follow(self) -> None:
        self._switch.update(frozenset().union(*self._drafts.values()))
