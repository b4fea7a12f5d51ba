"""How likely a proposed token is to be accepted, learnt from what was accepted before."""

from collections.abc import Iterable

_PRIOR_STRENGTH = 6.0  # tokens' worth of evidence that the source's rate counts for
_REQUEST_FORGETTING = 0.97  # per verified token of the request: its text changes as it goes
_SOURCE_FORGETTING = 0.999  # per verified token of the source
_SOURCE_START = 20.0  # tokens' worth of evidence that a source begins with
INITIAL_RATE = 0.6  # tried at first; a source that is worse shows it within a few steps


class AcceptanceRate:
    """A decayed acceptance rate, drawn towards a prior while it has seen little."""

    def __init__(
        self,
        forgetting: float,
        prior_strength: float = _PRIOR_STRENGTH,
        seen: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Starts as if so many of so many tokens `seen` had been accepted."""
        self._forgetting = forgetting
        self._prior_strength = prior_strength
        self._accepted, self._tried = seen

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Learn from a verification: a chain stops at its first rejection.

        So `num_proposed` tokens of which `num_accepted` were accepted are that many successes
        and, unless all were accepted, one failure; what came after was never tried.
        """
        self.add(num_accepted + (num_accepted < num_proposed), num_accepted)

    def add(self, num_tried: int, num_accepted: int) -> None:
        """Learn from tokens that were tried, of any number of verifications."""
        keep = self._forgetting**num_tried
        self._accepted = self._accepted * keep + num_accepted
        self._tried = self._tried * keep + num_tried

    def fade(self, keep: float, least: float) -> None:
        """Rely less on what was seen, down to the evidence of `least` tokens."""
        if self._tried > least:
            keep = max(keep, least / self._tried)
            self._accepted *= keep
            self._tried *= keep

    def rate(self, prior: float) -> float:
        """Probability that the next token of a chain is accepted, in (0, 1)."""
        accepted = self._accepted + prior * self._prior_strength
        return accepted / (self._tried + self._prior_strength)


def source_acceptance() -> AcceptanceRate:
    """The rate over all requests of one source, the prior of new requests.

    It has no prior of its own but a start, which fades like what follows.
    """
    start = INITIAL_RATE * _SOURCE_START, _SOURCE_START
    return AcceptanceRate(_SOURCE_FORGETTING, prior_strength=0.0, seen=start)


def request_acceptance() -> AcceptanceRate:
    """The rate of one request."""
    return AcceptanceRate(_REQUEST_FORGETTING)


def expected_length(rates: Iterable[float]) -> float:
    """Tokens of a chain that will be accepted, on average.

    Args:
        rates: of each token, given that all before it were accepted.
    """
    length, survival = 0.0, 1.0
    for rate in rates:
        survival *= rate
        length += survival
    return length
