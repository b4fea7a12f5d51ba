"""Requests that are alike in how they are sampled."""

from specray.types import SamplingSettings

_STEPS_PER_DEGREE = 4
_HOTTEST = 8
_GREEDY = -1


def temperature_class(sampling: SamplingSettings) -> int:
    """A number for greedy requests, and one for each quarter of a temperature up to 2."""
    if sampling.is_greedy:
        return _GREEDY
    return min(round(_STEPS_PER_DEGREE * sampling.temperature), _HOTTEST)
