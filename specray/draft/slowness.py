"""How slow a model is made, for experiments."""

from dataclasses import dataclass


@dataclass(slots=True)
class Slowness:
    """May change at any time, from any thread."""

    pass_ms: float  # the least that a forward pass takes
