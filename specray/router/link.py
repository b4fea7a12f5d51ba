"""Streams to replicas that are opened again whenever they break."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from specray.errors import StreamClosedError
from specray.wire.client import Stream

_log = logging.getLogger(__name__)

In = TypeVar("In")
Out = TypeVar("Out")

_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 2.0


@dataclass(frozen=True, slots=True)
class LinkEvents(Generic[In]):
    """Who is told what happens on a link, on its loop. The first argument is the address."""

    up: Callable[[str], None]  # the replica's application has taken the stream
    received: Callable[[str, In, int], None]  # a frame and its size in bytes
    down: Callable[[str], None]  # the stream has ended; called once for every `up`


class Link(Generic[In, Out]):
    """Lives on the running loop from construction until `close`."""

    def __init__(
        self,
        address: str,
        connect: Callable[[str], Awaitable[Stream[In, Out]]],
        events: LinkEvents[In],
    ) -> None:
        self.address = address
        self._connect = connect
        self._events = events
        self._stream: Stream[In, Out] | None = None
        self._backoff_s = _FIRST_BACKOFF_S
        self._task = asyncio.ensure_future(self._run())

    @property
    def is_up(self) -> bool:
        """Whether frames sent now have a stream to go to."""
        return self._stream is not None

    def send(self, frame: Out) -> None:
        """Send a frame; if the stream is broken it is dropped, and `down` is about to follow."""
        if self._stream is None:
            return
        try:
            self._stream.send(frame)
        except StreamClosedError:
            _log.debug("A frame for %s found its stream closed", self.address)

    def restart(self) -> None:
        """Drop the stream and connect again, after the usual pause."""
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> None:
        """End the link."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._live(await self._connect(self.address))
            except StreamClosedError as error:
                _log.info("Retrying in %.1f s: %s", self._backoff_s, error)
            except Exception:  # noqa: BLE001  # of a frame, say: the next stream may do
                _log.exception("The link to %s failed; retrying", self.address)
            await asyncio.sleep(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, _LAST_BACKOFF_S)

    async def _live(self, stream: Stream[In, Out]) -> None:
        self._stream = stream
        try:
            self._events.up(self.address)
            num_bytes = 0
            async for frame in stream:
                self._backoff_s = _FIRST_BACKOFF_S  # only a replica that talks is a healthy one
                received = stream.num_bytes_received
                self._events.received(self.address, frame, received - num_bytes)
                num_bytes = received
        finally:
            self._stream = None
            self._events.down(self.address)
            await stream.close()


class Links(Generic[In, Out]):
    """A link to each replica of a role that is listed. Lives on the running loop."""

    def __init__(
        self, connect: Callable[[str], Awaitable[Stream[In, Out]]], events: LinkEvents[In]
    ) -> None:
        self._connect = connect
        self._events = events
        self._links: dict[str, Link[In, Out]] = {}
        self._closing: set[asyncio.Task[None]] = set()  # asyncio itself keeps weak references only

    def update(self, addresses: frozenset[str]) -> None:
        """Open links to the addresses that are new, close those to addresses that have gone."""
        for address in self._links.keys() - addresses:
            closing = asyncio.ensure_future(self._links.pop(address).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for address in addresses - self._links.keys():
            self._links[address] = Link(address, self._connect, self._events)

    def send(self, frames: Mapping[str, Out]) -> None:
        """Send a frame to each of these addresses, as far as they are listed."""
        for address, frame in frames.items():
            if address in self._links:
                self._links[address].send(frame)

    def restart(self, address: str) -> None:
        """Drop the stream to an address and connect again; one that is closing does already."""
        if address in self._links:
            self._links[address].restart()

    @property
    def connected(self) -> tuple[str, ...]:
        """The addresses whose streams are up, sorted."""
        return tuple(sorted(address for address, link in self._links.items() if link.is_up))
