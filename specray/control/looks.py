"""How often to ask whether speculation pays, where it has not for a while."""

from specray.control.load_size import is_other_size

_SERIES = 16  # looks in vain in a row, after which the pause between two grows
_PAUSES = (1, 4, 16)  # steps from one look to the next, after each such series


class Looks:
    """At each step at first, then after pauses: a look takes plans, and at depth 0 little changes.

    A load of another size is looked at at once, and again soon. Probes come at their own times;
    what one has brought is looked at in the next step.
    """

    def __init__(self) -> None:
        """Nothing was in vain yet."""
        self._num_vain = 0
        self._num_steps = 0  # since the latest look
        self._load = 1  # requests at the latest look

    def is_due(self, num_decoding: int) -> bool:
        """Whether to look at this step, which so many requests decode in."""
        self._num_steps += 1
        if is_other_size(num_decoding, self._load):
            self._load = num_decoding
            self._num_vain = min(self._num_vain, _SERIES)
            self.hasten()
        return self._num_steps >= _PAUSES[self._num_vain // _SERIES]

    def hasten(self) -> None:
        """The next step is one to look at."""
        self._num_steps = _PAUSES[-1]

    def observe(self, num_decoding: int, *, is_vain: bool) -> None:
        """What a look has shown: whether speculation does not pay for so many."""
        self._num_steps, self._load = 0, num_decoding
        most = _SERIES * (len(_PAUSES) - 1)
        self._num_vain = min(self._num_vain + 1, most) if is_vain else 0

    def reset(self) -> None:
        """What was seen no longer says anything."""
        self._num_vain = 0
