"""When to try again what has been given up."""

from collections.abc import Callable

_FIRST_PAUSE_STEPS = 8  # at depth 0 before a request is tried again
_LAST_PAUSE_STEPS = 128  # each pause doubles up to this while it stays fruitless
_BUDGET = 0.005  # of the time: what probes may cost in the end, and more before
_HASTE_BUDGET = 0.0025  # of the time: what more they may cost because load comes and goes
_SETTLED_STEPS = 64  # with nobody left out, after which pauses begin anew
_NOTICE_STEPS = 4  # between a probe's announcement, for drafts to catch up, and the probe


class ProbeClock:
    """Pauses that double, and grow further as far as probes are dear; in steps and their seconds.

    The pauses end whatever happens, so that a draft that has become useful is found out also after
    an hour. What a probe has brought back and is soon given up again does not make them short.
    Some steps before a probe drafts are told what was committed in the meantime.
    """

    def __init__(self) -> None:
        self._pause_steps = _FIRST_PAUSE_STEPS
        self._num_settled = 0  # steps with nobody left out, in a row
        self._probe_cost_s = 0.0  # of the next, by the latest prediction
        self._waited_s = 0.0  # how long the latest probe's step was held back for it
        self._is_hasty = False  # whether pauses are short because of the load alone
        self._haste_debt_s = 0.0  # what that has cost beyond the budget, and is not paid for yet
        self._num_steps, self._seconds = 0, 0.0  # with somebody left out, since the latest probe
        self._rest()

    def reset(self) -> None:
        """What was given up is much better than thought: the next pause is a short one again."""
        self._pause_steps = _FIRST_PAUSE_STEPS
        self._is_hasty = False
        self._rest()

    def charge(self, waited_s: float) -> None:
        """How long a probe's step was held back: the next pause pays for it.

        Paid afterwards as nobody knows it before: a draft that was slow may be fast now.
        """
        self._waited_s = waited_s

    @property
    def may_hasten(self) -> bool:
        """Whether earlier haste is paid for; load that comes and goes would make it the rule."""
        return self._haste_debt_s <= self._probe_cost_s

    def hasten(self) -> None:
        """What was given up may be better now: the pause that runs is a short one.

        It goes on: load that changes all the time would otherwise begin it anew for ever.
        """
        steps = min(self._num_steps, _FIRST_PAUSE_STEPS - _NOTICE_STEPS)
        seconds = self._seconds
        self.reset()
        self._is_hasty, self._num_steps, self._seconds = True, steps, seconds

    def settle(self, step_s: float) -> None:
        """Note a step with nobody left out; the pause that it interrupts goes on after it.

        After enough of them the next pause is a short one.
        """
        self._pay(step_s)
        self._num_settled += 1
        if self._num_settled >= _SETTLED_STEPS:
            self.reset()

    def tick(self, step_s: float, probe_cost_s: Callable[[], float]) -> bool:
        """Note a step with somebody left out; whether it is time for a probe.

        Args:
            step_s: How long the step took.
            probe_cost_s: How much longer one with a probe would compute; asked for only when it may
                soon be time, as predicting that takes a while itself.
        """
        self._num_settled = 0
        self._num_steps += 1
        self._seconds += step_s
        self._pay(step_s)
        steps_left = float(self._pause_steps - self._num_steps)
        if step_s > 0 and steps_left <= _NOTICE_STEPS:
            budget = _BUDGET * _LAST_PAUSE_STEPS / self._pause_steps
            self._probe_cost_s = self._waited_s + probe_cost_s()
            steps_left = max(steps_left, (self._probe_cost_s / budget - self._seconds) / step_s)
        self.is_near = 0 < steps_left <= _NOTICE_STEPS
        if steps_left > 0:
            return False
        if self._is_hasty:
            self._haste_debt_s += max(0.0, self._probe_cost_s - _BUDGET * self._seconds)
            self._is_hasty = self._pause_steps < _LAST_PAUSE_STEPS
        self._pause_steps = min(2 * self._pause_steps, _LAST_PAUSE_STEPS)
        self._rest()
        return True

    def _pay(self, step_s: float) -> None:
        self._haste_debt_s = max(0.0, self._haste_debt_s - _HASTE_BUDGET * step_s)

    def _rest(self) -> None:
        self._num_steps = 0
        self._seconds = 0.0
        self.is_near = False  # whether drafts should catch up now
