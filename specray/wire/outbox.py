"""The bounded queue between whoever sends frames and the one task that writes them to a stream."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from specray.errors import SpecrayError

F = TypeVar("F")

MAX_FRAMES = 1024  # 20 s of one frame a step at 20 ms: whoever lags this far is not reading
_MAX_MERGED = 16  # what is merged is decoded in one go, which holds up the reader


class QueueFullError(SpecrayError):
    """The peer does not read; its stream is ended (RESOURCE_EXHAUSTED)."""


class Outbox(Generic[F]):
    """Frames in from any thread, out on the loop that made it, neighbours merged where right."""

    def __init__(self, merge: Callable[[F, F], F | None]) -> None:
        self._merge = merge
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._overflowed = asyncio.Event()
        self._lock = threading.Lock()  # guards what follows, and the loop against its own end
        self._frames: deque[F] = deque()
        self._is_closed = False
        self._is_full = False

    @property
    def is_closed(self) -> bool:
        """Whether frames are refused: after `close`, or for good after an overflow."""
        return self._is_closed or self._is_full

    def put(self, frame: F) -> bool:
        """Queue a frame; False if the outbox is closed or has just overflowed."""
        with self._lock:
            if self.is_closed:
                return False
            if len(self._frames) >= MAX_FRAMES:
                self._is_full = True
                self._frames.clear()
                self._loop.call_soon_threadsafe(self._overflowed.set)
                return False
            self._frames.append(frame)
            if len(self._frames) == 1:  # else the writer has been woken already
                self._loop.call_soon_threadsafe(self._changed.set)
            return True

    async def take(self) -> F:
        """The next frame, merged with those behind it; there is none after an overflow."""
        while True:
            with self._lock:
                if self._frames:
                    return self._pop()
                self._changed.clear()
            await self._changed.wait()

    async def fail_when_full(self) -> None:
        """Waits for an overflow, after which the peer has missed something.

        Raises:
            QueueFullError: it has come to that.
        """
        await self._overflowed.wait()
        raise QueueFullError(
            f"{MAX_FRAMES} frames wait to be read: the peer is dead or far too slow"
        )

    def close(self) -> None:
        """Refuse all further frames and drop those that wait. Call it on the outbox's loop."""
        with self._lock:
            self._is_closed = True
            self._frames.clear()

    def _pop(self) -> F:
        frame = self._frames.popleft()
        for _ in range(_MAX_MERGED - 1):
            merged = self._merge(frame, self._frames[0]) if self._frames else None
            if merged is None:
                break
            self._frames.popleft()
            frame = merged
        return frame
