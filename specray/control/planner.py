"""The fast loop: from what was measured to the depths of the next step."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from specray.control.acceptance import INITIAL_RATE, AcceptanceRate, source_acceptance
from specray.control.depth import Candidate, DepthPlan, plan_depths
from specray.control.step_time import StepTimeModel
from specray.types import Source

_FIRST_PROBE_STEPS = 8  # steps at depth 0 before a request is tried again
_LAST_PROBE_STEPS = 128  # each pause doubles up to this while it stays fruitless
PROBE_DEPTH = 2


class Offer(NamedTuple):
    """A request's chance to speculate."""

    acceptance: AcceptanceRate
    source: Source
    max_depth: int


class Planner:
    """Learns from steps and verifications; plans depths for goodput, and probes what it left out.

    No decision looks at a proposed token or its probability, only at rates, caps and times:
    cutting a sampled chain because of the token that is cut would bias the output.
    """

    def __init__(self) -> None:
        self._step_time = StepTimeModel()
        self._sources: dict[Source, AcceptanceRate] = defaultdict(source_acceptance)
        self._pause_steps = self._steps_to_probe = _FIRST_PROBE_STEPS
        self.is_probing = False  # whether the latest wanted depths hold a probe

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step without prefill."""
        self._step_time.observe(num_tokens, seconds)

    def observe_verification(
        self, acceptance: AcceptanceRate, source: Source, num_proposed: int, num_accepted: int
    ) -> None:
        """Learn, for the request and for the source, from what a verification accepted."""
        acceptance.observe(num_proposed, num_accepted)
        self._sources[source].observe(num_proposed, num_accepted)

    def plan(self, offers: Sequence[Offer], num_plain: int, wait_s: float = 0.0) -> DepthPlan:
        """The depths with the highest goodput; see `plan_depths`."""
        candidates = [Candidate(self._rate(offer), offer.max_depth) for offer in offers]
        return plan_depths(candidates, num_plain, self._step_time.predict, wait_s)

    def wanted_depths(
        self, offers: Sequence[Offer], num_plain: int, wait_s: float
    ) -> tuple[int, ...]:
        """How deep the next proposals should be, given the wait for them.

        Requests that are better off at depth 0 are tried with a short proposal now and then, all
        in the same step, so that a change for the better is noticed at a bounded cost.
        """
        if not offers:
            self.is_probing = False
            return ()  # nobody to ask: says nothing about whether speculation pays
        speculative = self.plan(offers, num_plain, wait_s)
        plain = self.plan((), num_plain + len(offers))
        is_worth_it = speculative.goodput > plain.goodput
        depths = speculative.depths if is_worth_it else (0,) * len(offers)
        left_out = [d == 0 and offer.max_depth > 0 for d, offer in zip(depths, offers, strict=True)]
        self.is_probing = self._is_time_to_probe(any(left_out))
        if not self.is_probing:
            return depths
        return tuple(
            min(PROBE_DEPTH, offer.max_depth) if is_left_out else depth
            for depth, offer, is_left_out in zip(depths, offers, left_out, strict=True)
        )

    def _rate(self, offer: Offer) -> float:
        return offer.acceptance.rate(self._sources[offer.source].rate(INITIAL_RATE))

    def _is_time_to_probe(self, is_someone_left_out: bool) -> bool:
        if not is_someone_left_out:
            self._pause_steps = self._steps_to_probe = _FIRST_PROBE_STEPS
            return False
        self._steps_to_probe -= 1
        if self._steps_to_probe > 0:
            return False
        self._pause_steps = min(2 * self._pause_steps, _LAST_PROBE_STEPS)
        self._steps_to_probe = self._pause_steps
        return True
