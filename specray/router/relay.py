"""The relay: M targets' commits to N drafts, their proposals back; in a thread of its own."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TypeVar

from specray.router.link import Link, LinkEvents
from specray.router.sessions import SessionTable
from specray.router.stats import RelayStats, Traffic
from specray.types import ProposalFrame, SessionFrame
from specray.wire.client import Stream, connect_draft, connect_target
from specray.wire.loop_thread import LoopThread

_log = logging.getLogger(__name__)

In = TypeVar("In")
Out = TypeVar("Out")


class Relay:
    """The data plane of one router. Needs `start`; knows addresses and frames, no Ray."""

    def __init__(
        self,
        router_id: str,
        stall_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._switch = _Switch(router_id, stall_timeout_s, clock)
        self._name = f"specray-relay-{router_id}"
        self._thread: LoopThread | None = None

    def start(self) -> None:
        """Start the thread; replicas come with `update_replicas`."""
        self._thread = LoopThread(self._name)
        self._thread.post(self._switch.watch)

    def stop(self) -> None:
        """Close every stream and join the thread. Idempotent."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def update_replicas(self, targets: Sequence[str], drafts: Sequence[str]) -> None:
        """Set the addresses ("host:port") to be connected to, from any thread. Idempotent."""
        if self._thread is not None:
            self._thread.post(self._switch.update, frozenset(targets), frozenset(drafts))

    def snapshot(self) -> RelayStats:
        """The counters since the start, from any thread but the relay's."""
        if self._thread is None:
            return self._switch.snapshot()
        return self._thread.run(self._switch.take_snapshot())


class _Switch:
    """What the relay does, all on its loop."""

    def __init__(self, router_id: str, stall_timeout_s: float, clock: Callable[[], float]) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._table = SessionTable(clock)
        self._to_drafts, self._to_targets = Traffic(), Traffic()
        self._connect_target = partial(connect_target, router_id=router_id)
        self._connect_draft = partial(connect_draft, router_id=router_id)
        self._targets: dict[str, Link[SessionFrame, ProposalFrame]] = {}
        self._drafts: dict[str, Link[ProposalFrame, SessionFrame]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps weak references only

    def watch(self) -> None:
        """Look for stalled drafts from now on."""
        self._spawn(self._watch())

    def update(self, targets: frozenset[str], drafts: frozenset[str]) -> None:
        """Open links to the addresses that are new, close those to addresses that have gone."""
        target_events = LinkEvents(_ignore, self._from_target, self._target_down)
        draft_events = LinkEvents(self._draft_up, self._from_draft, self._draft_down)
        self._reconcile(self._targets, targets, self._connect_target, target_events)
        self._reconcile(self._drafts, drafts, self._connect_draft, draft_events)
        self._table.keep_drafts(drafts)

    def snapshot(self) -> RelayStats:
        """The counters since the start."""
        return RelayStats(
            connected_targets=_connected(self._targets),
            connected_drafts=_connected(self._drafts),
            open_sessions=self._table.num_open,
            num_homeless=self._table.num_homeless,
            fallbacks=dict(self._table.fallbacks),
            to_drafts=self._to_drafts.copy(),
            to_targets=self._to_targets.copy(),
        )

    async def take_snapshot(self) -> RelayStats:
        """`snapshot` for those who ask from another thread."""
        return self.snapshot()

    def _from_target(self, target: str, frame: SessionFrame, num_bytes: int) -> None:
        arrived_at = self._clock()
        _send(self._drafts, self._table.from_target(target, frame))
        self._to_drafts.observe(num_bytes, self._clock() - arrived_at)

    def _target_down(self, target: str) -> None:
        _send(self._drafts, self._table.remove_target(target))

    def _draft_up(self, draft: str) -> None:
        _send(self._targets, self._table.add_draft(draft))

    def _from_draft(self, draft: str, frame: ProposalFrame, num_bytes: int) -> None:
        arrived_at = self._clock()
        _send(self._targets, self._table.from_draft(draft, frame))
        self._to_targets.observe(num_bytes, self._clock() - arrived_at)

    def _draft_down(self, draft: str) -> None:
        _send(self._targets, self._table.remove_draft(draft, "draft_died"))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._stall_timeout_s / 4)
            for draft in self._table.stalled(self._stall_timeout_s):
                _log.warning("Draft %s owes proposals for too long; its sessions move", draft)
                _send(self._targets, self._table.remove_draft(draft, "draft_stalled"))
                if (link := self._drafts.get(draft)) is not None:  # else it is closing already
                    link.restart()

    def _reconcile(
        self,
        links: dict[str, Link[In, Out]],
        addresses: frozenset[str],
        connect: Callable[[str], Awaitable[Stream[In, Out]]],
        events: LinkEvents[In],
    ) -> None:
        for address in links.keys() - addresses:
            self._spawn(links.pop(address).close())
        for address in addresses - links.keys():
            links[address] = Link(address, connect, events)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _send(links: Mapping[str, Link[In, Out]], frames: Mapping[str, Out]) -> None:
    for address, frame in frames.items():
        if address in links:
            links[address].send(frame)


def _connected(links: Mapping[str, Link[In, Out]]) -> tuple[str, ...]:
    return tuple(sorted(address for address, link in links.items() if link.is_up))


def _ignore(_address: str) -> None:
    """A target that comes up announces its requests itself."""
