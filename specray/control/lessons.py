"""What steps and verifications have shown, until there is time to learn from it."""

from specray.control.roofline import StepLoad
from specray.control.step_time import StepTimeModel
from specray.control.survival import Offer, SurvivalModel, Verification

_AT_ONCE = 4  # steps: beside a CPU target most of learning is to bring code and tables into caches
_EAGER_VERIFICATIONS = 64  # until so many are learnt from, no step waits for others
_SURPRISE = 2.0  # times as many of a probe's tokens accepted as expected


class Lessons:
    """Notes are cheap, learning is a good part of the planner's work; plans may do without."""

    def __init__(self, step_time: StepTimeModel) -> None:
        """Takes what is known of step times."""
        self.step_time = step_time
        self.survival = SurvivalModel()
        self._steps: list[tuple[StepLoad, float]] = []  # that are not learnt from yet
        self._verifications: list[Verification] = []  # likewise
        self._num_verified = 0  # that were
        self.has_probe = False  # whether a probe's are among those that are not

    def note_step(self, load: StepLoad, seconds: float) -> None:
        """A finished step; of the first is learnt at once: without, nothing could be planned."""
        self._steps.append((load, seconds))
        if self.step_time.is_blank:
            self.learn()

    def note_verification(self, offer: Offer, num_accepted: int, *, is_probe: bool) -> None:
        """A verification; before the first of a probe, of which more is asked, others are learnt.

        Args:
            offer: What was verified; its depth is the number of tokens.
            num_accepted: Of these.
            is_probe: Whether its step tries what was given up.
        """
        if is_probe and not self.has_probe:
            self.learn()
        self._verifications.append(Verification(offer, num_accepted))
        self.has_probe |= is_probe

    @property
    def are_due(self) -> bool:
        """Whether a probe's outcome is noted, or so much that learning is worth its time."""
        is_new = bool(self._verifications) and self._num_verified < _EAGER_VERIFICATIONS
        is_eager = self.has_probe or is_new or self.step_time.is_young
        return is_eager or len(self._steps) >= _AT_ONCE

    def learn(self) -> bool:
        """Learn from all that was noted; whether a probe went much better than expected."""
        steps, self._steps = self._steps, []
        for load, seconds in steps:
            self.step_time.observe(load, seconds)
        verifications, self._verifications = self._verifications, []
        has_probe, self.has_probe = self.has_probe, False
        if not verifications:
            return False
        self._num_verified += len(verifications)
        num_expected = self.survival.observe(verifications)
        num_accepted = sum(verification.num_accepted for verification in verifications)
        return has_probe and num_accepted > _SURPRISE * num_expected
