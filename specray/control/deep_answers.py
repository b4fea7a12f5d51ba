"""Whether to ask for answers that steps can wait for, or for as deep ones as may be."""

from statistics import fmean

_WINDOW_STEPS = 24  # in each of the two ways, by turns
_SETTLING_STEPS = 6  # of them that do not count, as answers to earlier commits still come
_PAIRS = 2  # of windows in a trial
_LEAST_GAIN = 1.03  # of the other way, to be taken up
_HOPELESS = 0.95  # of it, with which a trial ends after the first pair
_FIRST_PAUSE_STEPS = 96  # before a trial; each doubles it while the same way holds
_LAST_PAUSE_STEPS = 4096
_BUDGET = 0.005  # of the steps, that trials of the worse way may cost


class DeepAnswers:
    """The better of two ways to ask, found out by trying both: no model tells what drafts will do.

    Deep answers often come too late for the step that they are for. But what comes a step late
    still holds tokens of use if it is deep, while steps go on without waiting, and drafts work
    meanwhile. How much that brings depends on how many sessions a draft has, and on what they ask.
    """

    def __init__(self) -> None:
        """Short ones hold at first."""
        self._holds_deep = False  # outside trials
        self._is_trying = False
        self._pause_steps = _FIRST_PAUSE_STEPS
        self._num_steps = 0  # of the pause, or of a trial's window
        self._num_tokens = 0
        self._request_s = 0.0
        self._rates: list[
            float
        ] = []  # of a trial's windows, by turns: the way that holds, the other

    @property
    def is_deep(self) -> bool:
        """How to ask for the coming step."""
        return self._holds_deep != (len(self._rates) % 2 == 1)

    def observe(self, num_requests: int, num_committed: int, seconds: float) -> None:
        """Note a step that was asked for so, and the time since the one before ended."""
        self._num_steps += 1
        if not self._is_trying:
            self._is_trying = self._num_steps >= self._pause_steps
            self._num_steps = 0 if self._is_trying else self._num_steps
            return
        if self._num_steps > _SETTLING_STEPS:
            self._num_tokens += num_committed
            self._request_s += num_requests * seconds
        if self._num_steps >= _WINDOW_STEPS:
            self._rates.append(self._num_tokens / self._request_s)
            self._num_steps = self._num_tokens = 0
            self._request_s = 0.0
            self._judge()

    def _judge(self) -> None:
        held, other = self._rates[::2], self._rates[1::2]
        if len(held) > len(other):
            return
        gain = fmean(other) / fmean(held)
        if len(other) < _PAIRS and gain > _HOPELESS:
            return
        self._is_trying = False
        self._rates.clear()
        if gain > _LEAST_GAIN:
            self._holds_deep = not self._holds_deep
            self._pause_steps = _FIRST_PAUSE_STEPS
            return
        num_lost = len(other) * _WINDOW_STEPS * max(0.0, 1 - gain)
        pause_steps = max(2 * self._pause_steps, round(num_lost / _BUDGET))
        self._pause_steps = min(pause_steps, _LAST_PAUSE_STEPS)
