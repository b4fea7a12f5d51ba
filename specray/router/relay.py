"""The relay: M targets' commits to N drafts, their proposals back; in a thread of its own.

Where targets have streams to drafts of their own, it names the drafts to them and relays nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from specray.router.link import LinkEvents, Links
from specray.router.switch import Switch
from specray.router.watch import SessionWatch
from specray.types import DataPath, ProposalFrame, SessionFrame
from specray.wire.client import connect_target
from specray.wire.loop_thread import LoopThread
from specray.wire.stats import RelayStats


class Relay:
    """The data plane of one router. Needs `start`; knows addresses and frames, no Ray."""

    def __init__(
        self, router_id: str, stall_timeout_s: float, data_path: DataPath = "relay"
    ) -> None:
        """Takes what is known at the start.

        Args:
            router_id: what targets and drafts are to know it by.
            stall_timeout_s: a draft that owes a proposal for longer loses its sessions.
            data_path: whether it relays, or names the drafts to the targets.
        """
        self._hub = _Hub(router_id, stall_timeout_s, is_direct=data_path == "direct")
        self._name = f"specray-relay-{router_id}"
        self._thread: LoopThread | None = None

    def start(self) -> None:
        """Start the thread; replicas come with `update_replicas`."""
        self._thread = LoopThread(self._name)
        self._thread.post(self._hub.start)

    def stop(self) -> None:
        """Close every stream and join the thread. Idempotent."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def update_replicas(self, targets: Sequence[str], drafts: Sequence[str]) -> None:
        """Set the addresses ("host:port") to be connected to, from any thread. Idempotent."""
        if self._thread is not None:
            self._thread.post(self._hub.update, frozenset(targets), frozenset(drafts))

    async def snapshot(self) -> RelayStats:
        """The counters since the start, for a caller on any loop but the relay's."""
        if self._thread is None:
            return await self._hub.snapshot()
        return await self._thread.ask(self._hub.snapshot())

    @contextmanager
    def watch(self, request_id: str) -> Iterator[SessionWatch]:
        """Look at the session of a request that is yet to come; costs nothing afterwards.

        Of what is not relayed nothing is seen.
        """
        watch = SessionWatch(request_id)
        if self._thread is not None:
            self._thread.post(self._hub.watches.add, watch)
        try:
            yield watch
        finally:
            if self._thread is not None:
                self._thread.post(self._hub.watches.discard, watch)


class _Hub:
    """What the relay does, all on its loop."""

    def __init__(self, router_id: str, stall_timeout_s: float, *, is_direct: bool) -> None:
        self._switch = Switch(router_id, stall_timeout_s, self._to_targets)
        self._targets: Links[SessionFrame, ProposalFrame] = Links(
            partial(connect_target, router_id=router_id),
            LinkEvents(self._target_up, self._from_target, self._switch.remove_target),
        )
        self._is_direct = is_direct
        self._drafts: frozenset[str] = frozenset()
        self.watches: set[SessionWatch] = set()

    def start(self) -> None:
        """Look for stalled drafts from now on."""
        self._switch.start()

    def update(self, targets: frozenset[str], drafts: frozenset[str]) -> None:
        """Set the addresses of both."""
        if not self._is_direct:
            self._switch.update(drafts)
        elif drafts != self._drafts:
            self._drafts = drafts
            self._targets.send(dict.fromkeys(self._targets.connected, self._names()))
        self._targets.update(targets)

    async def snapshot(self) -> RelayStats:
        """The counters since the start."""
        stats = replace(self._switch.snapshot(), connected_targets=self._targets.connected)
        return replace(stats, connected_drafts=None) if self._is_direct else stats

    def _names(self) -> ProposalFrame:
        return ProposalFrame(drafts=tuple(sorted(self._drafts)))

    def _target_up(self, target: str) -> None:
        """It announces its requests itself, once it knows where."""
        if self._is_direct:
            self._targets.send({target: self._names()})

    def _from_target(self, target: str, frame: SessionFrame, _num_bytes: int) -> None:
        if self._is_direct:  # it was sent before the drafts had been named: to be announced again
            lost = tuple(opened.session_id for opened in frame.opens)
            self._targets.send({target: ProposalFrame(lost=lost)} if lost else {})
            return
        self._switch.from_target(target, frame)
        for watch in self.watches:
            watch.from_target(target, frame)

    def _to_targets(self, frames: Mapping[str, ProposalFrame]) -> None:
        self._targets.send(frames)
