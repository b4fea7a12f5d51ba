"""What an engine has to do, and how long its requests wait: what pools are scaled by."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from specray.wire.stats import EngineLoad, TargetStats


class Queues(NamedTuple):
    """The engine's requests now."""

    num_running: int
    num_waiting: int
    max_running: int
    kv_usage: float  # 0 to 1


class LoadMeter:
    """Adds the engine's load to what the scheduler counts; observed from the engine's thread."""

    def __init__(
        self,
        source: Callable[[], TargetStats],
        queues: Callable[[], Queues],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes whose counters to complete.

        Args:
            source: a snapshot of the speculation's; on the stream server's thread, like `queues`.
            queues: the engine's requests.
            clock: seconds.
        """
        self._source = source
        self._queues = queues
        self._clock = clock
        self._load = EngineLoad()
        self._arrived: dict[str, float] = {}  # of requests without a token yet, by id
        self._ended: list[str] = []  # since the latest step; some in it, with their first token
        self._stepped_at = clock()

    def observe_arrival(self, request_id: str) -> None:
        """A request has come."""
        self._load.num_arrived += 1
        self._arrived[request_id] = self._clock()

    def observe_step(self, grown: Collection[str], num_tokens: int, step_s: float) -> None:
        """A step has ended.

        Args:
            grown: Requests that got a token.
            num_tokens: How many they got together.
            step_s: How long it took, without what was waited for before it.
        """
        self._load.busy_s += step_s
        now, before = self._clock(), self._stepped_at
        self._stepped_at = now
        first = [arrived for i in grown if (arrived := self._arrived.pop(i, None)) is not None]
        for arrived in first:
            self._load.first_token_time.observe(now - arrived)
        # Who decodes took part in the step before, so that no idle time counts.
        self._load.decode_s += (len(grown) - len(first)) * (now - before)
        self._load.num_decoded += num_tokens - len(first)
        for request_id in self._ended:
            self._arrived.pop(request_id, None)
        self._ended.clear()

    def forget(self, request_id: str) -> None:
        """A request has ended, perhaps without a token."""
        self._ended.append(request_id)

    def stats(self) -> TargetStats:
        """All counters; called on the stream server's thread."""
        stats = self._source()
        stats.load = replace(
            self._load,
            **self._queues()._asdict(),
            first_token_time=self._load.first_token_time.copy(),
        )
        return stats
