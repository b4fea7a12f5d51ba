"""How long simulated steps take: a law, or no time to speak of."""

from dataclasses import dataclass
from typing import Protocol

from specray.control.roofline import StepLoad


class StepLaw(Protocol):
    """A law of step times; `control.roofline.Roofline` is one."""

    def step_s(self, load: StepLoad) -> float:
        """Seconds of one step."""


@dataclass(frozen=True, slots=True)
class ConstantSteps:
    """Steps that take the same time whatever they hold: look-ups, and tests."""

    seconds: float

    def step_s(self, load: StepLoad) -> float:  # noqa: ARG002 - the protocol's
        """See `StepLaw.step_s`."""
        return self.seconds
