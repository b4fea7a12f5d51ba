"""What the drafts' work costs the target where both share a machine."""

_GAIN = 0.4  # of each rested step, once there are some
_LARGEST = 4.0  # believed; beyond, something else has happened
_REST_STEPS = 3  # in a row without drafting, to see how long steps take then
_FIRST_REST, _PERIOD = 16, 128  # steps with drafting before the first rest, and between two
_RELIEF = 0.95  # of what is known to be lost, kept at each trial


class Slowdown:
    """How much longer steps take while drafts work, learnt by resting them for a few steps.

    A draft that works ahead, or is not waited for, is busy all the time. On cores and a memory of
    its own that costs the target nothing; beside the target it may cost more than it brings.
    """

    def __init__(self) -> None:
        self._rested_part = 1.0  # of a step's time beside drafting
        self._num_observed = 0
        self._num_steps = _PERIOD - _FIRST_REST  # since the latest rest ended
        self._num_rested = 0
        self.is_resting = False  # whether the latest answer was to rest

    @property
    def factor(self) -> float:
        """By which drafting stretches a step, at least 1."""
        return max(1.0, 1 / self._rested_part)

    def take_rest(self) -> bool:
        """Whether nobody is to draft for the coming step; asked where somebody would."""
        self._num_steps += 1
        self.is_resting = self._num_steps > _PERIOD
        if self.is_resting:
            self._num_rested += 1
            if self._num_rested >= _REST_STEPS:
                self._num_rested = self._num_steps = 0
        return self.is_resting

    def observe_rest(self, seconds: float, drafting_s: float) -> None:
        """Learns from a step without drafting, and what it is thought to take beside it."""
        if drafting_s <= 0:
            return
        self._num_observed += 1
        part = min(max(seconds / drafting_s, 1 / _LARGEST), _LARGEST)
        gain = max(_GAIN, 1 / self._num_observed)
        self._rested_part += gain * (part - self._rested_part)

    def relieve(self) -> None:
        """Speculation is tried again: times may have changed."""
        self._rested_part = 1 / (1 + _RELIEF * (self.factor - 1))
        self._num_steps = _PERIOD - _FIRST_REST
