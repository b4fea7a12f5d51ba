"""The drafts' side of the data plane: sessions shared out over the drafts that are listed.

A router has a switch for all of its targets. A target to which routers name drafts has one of its
own, for those routers: there "target" means the router that a request came through.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from specray.router.link import LinkEvents, Links
from specray.router.sessions import SessionTable
from specray.types import ProposalFrame, SessionFrame
from specray.wire.client import connect_draft
from specray.wire.stats import RelayStats, Traffic

_log = logging.getLogger(__name__)


class Switch:
    """Needs `start`. From then on it lives on the loop that runs."""

    def __init__(
        self,
        name: str,
        stall_timeout_s: float,
        deliver: Callable[[Mapping[str, ProposalFrame]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes what drafts are to know it by, and who takes what they propose.

        Args:
            name: of the streams to the drafts.
            stall_timeout_s: a draft that owes a proposal for longer loses its sessions.
            deliver: called on the loop with a frame for each target that is to be sent one.
            clock: in seconds.
        """
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._deliver = deliver
        self._table = SessionTable(clock, name)
        self._to_drafts, self._to_targets = Traffic(), Traffic()
        events = LinkEvents(self._draft_up, self._from_draft, self._draft_down)
        self._drafts = Links(
            partial(connect_draft, router_id=name, note_sent=self._to_drafts.count), events
        )
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look for drafts that have stalled, or hold far more than others, from now on."""
        self._watching = asyncio.ensure_future(self._watch())

    def update(self, drafts: frozenset[str]) -> None:
        """Set the drafts' addresses. Idempotent."""
        self._drafts.update(drafts)
        self._table.keep_drafts(drafts)

    def from_target(self, target: str, frame: SessionFrame) -> None:
        """Pass a target's news on to the drafts that hold its sessions."""
        arrived_at = self._clock()
        self._drafts.send(self._table.from_target(target, frame))
        self._to_drafts.hop_time.observe(self._clock() - arrived_at)

    def remove_target(self, target: str) -> None:
        """The target has gone: its sessions are over."""
        self._drafts.send(self._table.remove_target(target))

    def snapshot(self) -> RelayStats:
        """The counters since the start; of targets it knows no streams."""
        return RelayStats(
            connected_targets=None,
            connected_drafts=self._drafts.connected,
            open_sessions=self._table.num_open,
            num_homeless=self._table.num_homeless,
            fallbacks=dict(self._table.fallbacks),
            to_drafts=self._to_drafts.copy(),
            to_targets=self._to_targets.copy(),
        )

    def _draft_up(self, draft: str) -> None:
        self._deliver(self._table.add_draft(draft))

    def _from_draft(self, draft: str, frame: ProposalFrame, num_bytes: int) -> None:
        arrived_at = self._clock()
        self._deliver(self._table.from_draft(draft, frame))
        self._to_targets.observe(num_bytes, self._clock() - arrived_at)

    def _draft_down(self, draft: str) -> None:
        self._deliver(self._table.remove_draft(draft, "draft_died"))

    async def _watch(self) -> None:
        now = asyncio.get_running_loop().time
        pause_s = self._stall_timeout_s / 4
        while True:
            due = now() + pause_s
            await asyncio.sleep(pause_s)
            if now() - due > pause_s:
                continue  # we were held up, not the drafts: first read what they have sent
            for draft in self._table.stalled(self._stall_timeout_s):
                _log.warning("Draft %s owes proposals for too long; its sessions move", draft)
                self._deliver(self._table.remove_draft(draft, "draft_stalled"))
                self._drafts.restart(draft)
            moves = self._table.even_out()
            self._drafts.send(moves.to_drafts)
            self._deliver(moves.to_targets)
