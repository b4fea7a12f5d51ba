"""A thread with an asyncio loop of its own, so that nobody else's work delays tokens."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_new_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop as _new_loop  # a third off a round trip
except ImportError:  # it has no build for this platform
    _new_loop = asyncio.new_event_loop


class LoopThread:
    """Runs from construction until `stop`; a daemon, so that it never keeps a process alive."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def native_id(self) -> int:
        """As the system numbers threads."""
        assert self._thread.native_id is not None  # it has been started
        return self._thread.native_id

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run `work` on the loop and wait for its result, from any other thread.

        Raises:
            TimeoutError: it took longer than `timeout_s`.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop for a caller on another loop, which goes on meanwhile."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Call `callback` on the loop soon; nothing happens after `stop`."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    def stop(self) -> None:
        """Cancel what runs, let it clean up, and join the thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_all())
        self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, cancel the others, and raise what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
