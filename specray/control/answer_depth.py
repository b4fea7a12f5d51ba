"""How deep answers may be that a step waits for."""

import math
from collections.abc import Callable

from specray.control.latency import WaitTime

_PERIOD = 16  # steps between two looks, as one takes a plan for each depth
_SAME_WAIT = 0.02  # of a step, by which the waits for one token and for many may differ
_HOPELESS = 8  # looks, one of which asks for short answers where no step waits for any


class AnswerDepth:
    """Chooses the depth at which a proposal's last token is still worth the wait for it.

    A plan weighs depths against the time of the step. What a draft needs for each token counts,
    too, where it does not work ahead: a step waits longer the more is asked for, and answers for
    which no step waits are late, which keeps the draft from those that are wanted by then.
    """

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._depth = 1
        self._next_look = self._num_hopeless = 0

    def choose(
        self,
        most: int,
        wait_s: WaitTime,
        step_s: float,
        goodput: Callable[[int], float],
        step: int,
    ) -> int:
        """The depth to ask for.

        Where no step would wait for a token, that is the most, as some answers may be in time by
        chance; but short ones are tried now and then: others may take long only because those for
        which nobody waits go first.

        Args:
            most: Tokens that may be asked for, at least 1.
            wait_s: How long a step is held back for so many; infinite if it does not wait.
            step_s: How long a step takes.
            goodput: What so many are expected to bring, the wait included.
            step: The step's number; not for each is there a choice.
        """
        shortest_s = wait_s(1)
        is_hopeless = math.isinf(shortest_s)
        if not is_hopeless and wait_s(most) - shortest_s <= _SAME_WAIT * step_s:
            return most
        is_lost = not is_hopeless and math.isinf(wait_s(self._depth))
        if step < self._next_look and not is_lost:
            return min(most, self._depth)
        self._next_look = step + _PERIOD
        if is_hopeless:
            self._num_hopeless += 1
            self._depth = 1 if self._num_hopeless % _HOPELESS == 1 else most
        else:
            waited_for = (d for d in range(1, most + 1) if math.isfinite(wait_s(d)))
            self._depth = max(waited_for, key=goodput)
        return self._depth
