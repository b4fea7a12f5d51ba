"""The service's own counters, read from its Prometheus endpoint."""

import asyncio
import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import httpx

_LINE = re.compile(r"^ray_specray_(\w+?)(?:_total)?(?:\{[^}]*\})? ([0-9.eE+-]+)$")
_EVERY_S = 1.0


class Counters(NamedTuple):
    """Totals over all targets, at a time on the reader's clock."""

    at_s: float
    num_proposed: float
    num_accepted: float
    num_request_steps: float

    def since(self, before: "Counters") -> "Counters":
        """What was added, at this reading's time."""
        added = (now - then for now, then in zip(self[1:], before[1:], strict=True))
        return Counters(self.at_s, *added)

    @property
    def depth(self) -> float | None:
        """Draft tokens per request and step; None without steps."""
        steps = self.num_request_steps
        return self.num_proposed / steps if steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """None when nothing was verified."""
        return self.num_accepted / self.num_proposed if self.num_proposed else None


def parse(text: str, at_s: float) -> Counters:
    """The counters in an exposition; what has not been counted yet is 0."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if found := _LINE.match(line):
            totals[found[1]] = totals.get(found[1], 0.0) + float(found[2])
    names = ("proposed_tokens", "accepted_tokens", "request_steps")
    return Counters(at_s, *(totals.get(name, 0.0) for name in names))


class CounterLog:
    """Reads the counters every second while it is open."""

    def __init__(self, url: str, http: httpx.AsyncClient, clock: Callable[[], float]) -> None:
        self.readings: list[Counters] = []
        self._url = url
        self._http = http
        self._clock = clock

    async def read(self) -> Counters:
        """The counters now; those of before if the endpoint is busy."""
        try:
            response = await self._http.get(self._url)
            response.raise_for_status()
            self.readings.append(parse(response.text, self._clock()))
        except httpx.HTTPError:
            if not self.readings:
                return Counters(self._clock(), 0.0, 0.0, 0.0)
        return self.readings[-1]

    async def follow(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(_EVERY_S)

    def between(self, from_s: float, until_s: float) -> list[Counters]:
        """What was added from reading to reading, those with steps only."""
        here = [reading for reading in self.readings if from_s <= reading.at_s <= until_s]
        added = [now.since(before) for before, now in pairwise(here)]
        return [change for change in added if change.num_request_steps > 0]
