from collections.abc import Sequence

import numpy as np

from specray.control.depth import Chains


def even_chains(rates: Sequence[float], max_depths: Sequence[int]) -> Chains:
    """Chains whose tokens are each accepted with their request's rate."""
    limits = np.asarray(max_depths, np.intp)
    places = np.arange(1, limits.max(initial=0) + 1)
    survivals = np.asarray(rates, np.float64)[:, None] ** places
    return Chains(np.where(places <= limits[:, None], survivals, 0.0), limits)
