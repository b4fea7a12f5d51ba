"""How likely a proposed token is to be accepted, learnt from what was accepted before."""

_PRIOR_STRENGTH = 6.0  # tokens' worth of evidence that the source's rate counts for
_REQUEST_FORGETTING = 0.97  # per verified token of the request: its text changes as it goes
_SOURCE_FORGETTING = 0.999  # per verified token of the source
_INITIAL_RATE = 0.6  # tried at first; a source that is worse shows it within a few steps


class AcceptanceRate:
    """A decayed acceptance rate, drawn towards a prior while it has seen little."""

    def __init__(self, forgetting: float, prior_strength: float = _PRIOR_STRENGTH) -> None:
        self._forgetting = forgetting
        self._prior_strength = prior_strength
        self._accepted = 0.0
        self._tried = 0.0

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Learn from a verification: a chain stops at its first rejection.

        So `num_proposed` tokens of which `num_accepted` were accepted are that many successes
        and, unless all were accepted, one failure; what came after was never tried.
        """
        tried = num_accepted + (num_accepted < num_proposed)
        keep = self._forgetting**tried
        self._accepted = self._accepted * keep + num_accepted
        self._tried = self._tried * keep + tried

    def rate(self, prior: float) -> float:
        """Probability that the next token of a chain is accepted, in (0, 1)."""
        accepted = self._accepted + prior * self._prior_strength
        return accepted / (self._tried + self._prior_strength)


def source_acceptance() -> AcceptanceRate:
    """The rate over all requests of one source, the prior of new requests."""
    return AcceptanceRate(_SOURCE_FORGETTING, prior_strength=20.0)


def request_acceptance() -> AcceptanceRate:
    """The rate of one request."""
    return AcceptanceRate(_REQUEST_FORGETTING)


INITIAL_RATE = _INITIAL_RATE
