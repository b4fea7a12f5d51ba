"""When to take a step without drafts although they seem to pay: what is never seen is not known."""

_FIRST_PAUSE_STEPS = 16  # with draft tokens before the first plain one
_LAST_PAUSE_STEPS = 128  # each pause doubles up to this


class PlainTurns:
    """Counts steps with draft tokens since the last one without, apart for loads of each size.

    Whether drafts pay is judged against plain steps, and a target that always has something to
    verify, if only guesses of its own, would never see one: it would go by what it believes of
    them. One in 129 costs less than 1 % of what speculation gains. Drafts that are mostly waited
    for, on the target's own cores, still work while such a step runs, and make it longer.
    """

    def __init__(self) -> None:
        self._pauses: dict[int, int] = {}  # by powers of two of the requests
        self._num_steps: dict[int, int] = {}

    def observe(self, num_requests: int, *, is_plain: bool) -> None:
        """A step of so many requests that only decode."""
        size = num_requests.bit_length()
        self._num_steps[size] = 0 if is_plain else self._num_steps.get(size, 0) + 1

    def take(self, num_requests: int) -> bool:
        """Whether the coming step, of so many requests, is to be a plain one."""
        size = num_requests.bit_length()
        pause = self._pauses.get(size, _FIRST_PAUSE_STEPS)
        is_due = self._num_steps.get(size, 0) >= pause
        if is_due:
            self._pauses[size] = min(2 * pause, _LAST_PAUSE_STEPS)
            self._num_steps[size] = 0
        return is_due
