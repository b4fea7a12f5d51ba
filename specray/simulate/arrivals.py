"""When requests arrive, and how long they are."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from specray.errors import InvalidConfigError

_MAX_TOKENS = 1 << 20  # of a prompt or answer; more is a slip of the pen


class Arrival(NamedTuple):
    """A request as the cluster meets it."""

    at_s: float
    num_prompt_tokens: int
    num_answer_tokens: int


class Pattern(Protocol):
    """A law of arrivals."""

    def times(self, rng: np.random.Generator, until_s: float) -> Iterator[float]:
        """Ascending times in [0, until_s)."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users: exponential gaps."""

    qps: float

    def times(self, rng: np.random.Generator, until_s: float) -> Iterator[float]:
        """See `Pattern.times`."""
        now_s = rng.exponential(1 / self.qps)
        while now_s < until_s:
            yield now_s
            now_s += rng.exponential(1 / self.qps)


@dataclass(frozen=True, slots=True)
class Bursty:
    """Calm and bursts in turn; a Poisson process within each.

    `factor` is the rate of a burst over that of the calm; `qps` is the mean over both. Their
    lengths are fixed, so that any whole number of periods is offered that mean.
    """

    qps: float
    factor: float = 5.0
    burst_s: float = 5.0
    calm_s: float = 20.0

    @property
    def period_s(self) -> float:
        """Of a calm and a burst together."""
        return self.burst_s + self.calm_s

    def times(self, rng: np.random.Generator, until_s: float) -> Iterator[float]:
        """See `Pattern.times`."""
        weight = (self.factor * self.burst_s + self.calm_s) / self.period_s
        calm_qps = self.qps / weight
        start_s, is_burst = 0.0, False
        while start_s < until_s:
            rate = calm_qps * self.factor if is_burst else calm_qps
            end_s = start_s + (self.burst_s if is_burst else self.calm_s)
            for time_s in Poisson(rate).times(rng, min(until_s, end_s) - start_s):
                yield start_s + time_s
            start_s, is_burst = end_s, not is_burst


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A rate that swings as a sine about its mean: a day, or a test's idea of one."""

    qps: float
    swing: float = 0.8  # of the mean, in [0, 1]
    period_s: float = 86_400.0

    def times(self, rng: np.random.Generator, until_s: float) -> Iterator[float]:
        """See `Pattern.times`; by thinning (Lewis and Shedler, 1979)."""
        peak = self.qps * (1 + self.swing)
        for time_s in Poisson(peak).times(rng, until_s):
            phase = math.sin(2 * math.pi * time_s / self.period_s)
            if rng.random() * peak < self.qps * (1 + self.swing * phase):
                yield time_s


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts and answers: means, and a spread about them (log-normal)."""

    prompt: float
    answer: float
    spread: float = 0.0  # standard deviation over the mean

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        """One request's lengths, each at least 1."""
        return self._draw(rng, self.prompt), self._draw(rng, self.answer)

    def _draw(self, rng: np.random.Generator, mean: float) -> int:
        variance = math.log1p(self.spread**2)
        factor = rng.lognormal(-variance / 2, math.sqrt(variance))
        return max(1, round(mean * factor))


def draw_arrivals(
    pattern: Pattern, lengths: Lengths, until_s: float, seed: int
) -> tuple[Arrival, ...]:
    """Requests of a pattern; equal seeds give equal requests."""
    when, what = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    return tuple(Arrival(time_s, *lengths.draw(what)) for time_s in pattern.times(when, until_s))


def read_arrivals(path: Path) -> tuple[Arrival, ...]:
    """Requests that were recorded: JSON lines of `at_s`, `prompt_tokens` and `answer_tokens`.

    Raises:
        InvalidConfigError: naming the line and the field.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path}: {error}") from None
    found = [_read_line(f"{path}:{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InvalidConfigError(f"{path}: holds no arrivals")
    return tuple(sorted(found))


def _read_line(place: str, line: str) -> Arrival:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InvalidConfigError(f"{place}: {error}") from None
    if not isinstance(entry, dict):
        raise InvalidConfigError(f"{place}: {line:.40} is no object with `at_s`")
    at_s = entry.get("at_s")
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s < math.inf:
        raise InvalidConfigError(f"{place}: at_s is {at_s!r}; it must be seconds from 0 on")
    counts = [_count(place, entry, name) for name in ("prompt_tokens", "answer_tokens")]
    return Arrival(float(at_s), *counts)


def _count(place: str, entry: dict[str, object], name: str) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_TOKENS:
        raise InvalidConfigError(f"{place}: {name} is {value!r}; it must be 1 to {_MAX_TOKENS}")
    return value
