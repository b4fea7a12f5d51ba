"""When a draft pool that was given up is tried again."""

from collections.abc import Callable

_FIRST_PAUSE_S = 600.0  # without drafts, before one is tried
_LAST_PAUSE_S = 3600.0  # each pause doubles up to this while trials are fruitless
_TRIAL_S = 120.0  # from when the draft is there: dozens of the targets' probes


class DraftTrial:
    """Pauses that double, after each of which one draft shows whether drafts would pay again.

    Without any, targets can't see that what is asked of them has become easier to foresee: what
    they last believed would keep the pool at 0 for good.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Takes a clock; seconds."""
        self.is_on = False
        self._clock = clock
        self._pause_s = _FIRST_PAUSE_S
        self._gone_at: float | None = None  # since when there has been no draft
        self._ends_at: float | None = None

    def update(self, num_drafts: int, *, pays: bool, may_help: bool) -> None:
        """Begins, goes on or ends; to be called regularly.

        Args:
            num_drafts: those that are there.
            pays: Whether drafts seem to pay.
            may_help: Whether one could show anything: a trial without requests ends, and counts
                for nothing.
        """
        now = self._clock()
        if pays:
            self._end(_FIRST_PAUSE_S)
        elif not may_help:
            self._end(self._pause_s)
        elif self.is_on and num_drafts > 0:
            self._go_on(now)
        if num_drafts > 0:
            self._gone_at = None
        elif self._gone_at is None:
            self._gone_at = now
        elif may_help and now - self._gone_at >= self._pause_s:
            self.is_on = True

    def _go_on(self, now: float) -> None:
        self._ends_at = now + _TRIAL_S if self._ends_at is None else self._ends_at
        if now >= self._ends_at:
            self._end(min(2 * self._pause_s, _LAST_PAUSE_S))

    def _end(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self.is_on = False
        self._ends_at = None
