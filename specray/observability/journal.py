"""The requests that are under way in one process, told of when they end."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from specray.config import ObservabilityConfig
from specray.observability.traces import Attributes, Span, Tracer, make_tracer

_log = logging.getLogger("specray.sessions")


@dataclass(slots=True)
class _Entry:
    request_id: str
    began: float
    span: Span | None
    phase: Span | None = None
    totals: dict[str, float] = field(default_factory=dict)


class Journal:
    """A line in the log for each request, a span in its trace, or both.

    With neither it keeps nothing, and every method returns at once. Used from one thread.
    """

    def __init__(
        self,
        name: str,
        tracer: Tracer | None = None,
        *,
        is_logging: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._tracer = tracer
        self._is_logging = is_logging
        self._clock = clock
        self._entries: dict[object, _Entry] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything is written down."""
        return self._tracer is not None or self._is_logging

    def close(self) -> None:
        """Send what has ended."""
        if self._tracer is not None:
            self._tracer.close()

    def begin(self, key: object, request_id: str, traceparent: str) -> str:
        """Begin to follow a request.

        Args:
            key: by which it is told of from now on.
            request_id: its name in the log.
            traceparent: the span that it is part of.

        Returns:
            The parent of what others do for it: its own span here, else the one it was given.
        """
        if not self.is_on or key in self._entries:
            return traceparent
        span = self._tracer.start(self._name, traceparent) if self._tracer else None
        self._entries[key] = _Entry(request_id, self._clock(), span)
        return span.traceparent if span else traceparent

    def enter(self, key: object, phase: str) -> None:
        """A part of the request begins; the one before has ended."""
        entry = self._entries.get(key)
        if entry is None or entry.span is None:
            return
        if entry.phase is not None:
            entry.phase.end({})
        entry.phase = entry.span.child(phase)

    def add(self, key: object, **amounts: float) -> None:
        """Count something for a request."""
        entry = self._entries.get(key)
        if entry is None:
            return
        for name, amount in amounts.items():
            entry.totals[name] = entry.totals.get(name, 0) + amount

    def end(self, key: object, outcome: str) -> None:
        """The request is over; unknown ones are ignored."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        told: Attributes = {"outcome": outcome, **entry.totals}
        if entry.phase is not None:
            entry.phase.end({})
        if entry.span is not None:
            names = {f"specray.{name}": value for name, value in told.items()}
            entry.span.end({"specray.request_id": entry.request_id, **names})
        if self._is_logging:
            self._write(entry, told)

    def _write(self, entry: _Entry, told: Attributes) -> None:
        told = {**told, "duration_s": round(self._clock() - entry.began, 6)}
        text = " ".join(f"{name}={value}" for name, value in told.items())
        _log.info("%s %s", self._name, text, extra={"request_id": entry.request_id, **told})


def open_journal(config: ObservabilityConfig, role: str, instance: str) -> Journal:
    """The journal of a target's or a draft's process.

    Raises:
        StartupError: spans can't go where the config says.
    """
    tracer = make_tracer(config, role, instance)
    return Journal(f"specray.{role}", tracer, is_logging=config.session_log)
