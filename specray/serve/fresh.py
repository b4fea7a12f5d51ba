"""One answer for all who ask at about the same time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_FRESH_S = 0.5


class Fresh(Generic[T]):
    """Collects what is asked for twice a second at most, however many ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._last: tuple[float, T] | None = None  # when it was collected

    async def get(self, collect: Callable[[], Awaitable[T]]) -> T:
        """What `collect` has said, half a second ago at most; raises what it raises."""
        async with self._lock:
            if self._last is None or self._clock() - self._last[0] > _FRESH_S:
                answer = await collect()
                self._last = self._clock(), answer
            return self._last[1]
