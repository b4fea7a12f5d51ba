"""The fast loop: from what was measured to the depths of the next step."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from specray.control.answer_depth import AnswerDepth
from specray.control.depth import NO_LIMIT, Batch, DepthPlan
from specray.control.latency import ArrivalRate, WaitTime
from specray.control.lessons import Lessons
from specray.control.looks import Looks
from specray.control.loops import taking
from specray.control.overhead import Overhead
from specray.control.plain_turns import PlainTurns
from specray.control.policies import make_policy
from specray.control.probes import PROBE_DEPTH, Probes, with_probes
from specray.control.roofline import Intensity, Roofline, StepLoad
from specray.control.slowdown import Slowdown
from specray.control.step_time import StepTimeModel
from specray.control.survival import Offer, SurvivalModel, at_most
from specray.types import DRAFT_SOURCES, DepthRule, GoodputRule, Source
from specray.wire.stats import Prospect

_GOODPUT = GoodputRule()
_PROSPECT_PERIOD = 16  # steps
_SAME_WAIT = 0.02  # of a step, by which the waits for one token and for two may differ
_PROSPECT_GAIN = 0.2  # of each look after a verification, once there has been one
_GUESS_GAIN = 0.01  # of each other: what has been given up is thought better of, but slowly
_PRUDENCE = 1.15  # times its predicted time that a draft token has to be worth
_LEAST_GAIN = 1.02  # over plain decoding that is expected before speculation is taken up again


class Surroundings(NamedTuple):
    """What else the next step holds, as far as that is known before it."""

    num_kv_tokens: int = 0  # that it will read
    num_prefills: int = 0
    num_prefill_tokens: int = 0  # of those prefills' next chunks
    max_drafts: int = NO_LIMIT  # room for draft tokens
    num_sampled: int = 0  # requests that decode, and sample


class Planner:
    """Learns from steps and verifications; plans depths by a policy, and probes what it left out.

    No decision looks at a proposed token, only at what a draft is confident of, at rates, caps and
    times: cutting a sampled chain because of the token that is cut would bias the output. What a
    target guesses behind drawn tokens does depend on them, and decides on itself alone.
    """

    def __init__(
        self,
        rule: DepthRule = _GOODPUT,
        step_time: StepTimeModel | None = None,
        roofline: Roofline | None = None,
    ) -> None:
        """Takes the rule to plan by, and what is known of step times and hardware already.

        Compiles its loops, be it for a rule that is chosen later: no step is to wait for that.
        """
        taking()
        self._rule, self._policy = rule, make_policy(rule)
        self._roofline = roofline
        self._load = StepLoad(0, 0, 0)
        self._arrivals = ArrivalRate()
        self._lessons = Lessons(step_time or StepTimeModel(roofline))
        self._slowdown = Slowdown()
        self.overhead = Overhead()
        self._plain_turns = PlainTurns()
        self.is_off = False  # whether they were all 0 but for a probe's, as nothing else paid
        self._looks = Looks()
        self._surroundings = Surroundings()
        self._probes = Probes()
        self._step_s = 0.0  # of the latest step
        self._decode_s = 0.0  # of the latest without prefills
        self._num_wanted = 0  # times that depths were wanted
        self._answer_depth = AnswerDepth()
        self._has_verified = False  # since the latest look ahead
        self.prospect = Prospect()  # of speculation with proposals that are always there

    @property
    def step_time(self) -> StepTimeModel:
        """What is known of how long steps take."""
        return self._lessons.step_time

    @property
    def survival(self) -> SurvivalModel:
        """What is known of what is accepted."""
        return self._lessons.survival

    @property
    def is_probing(self) -> bool:
        """Whether the latest wanted depths hold a probe."""
        return self._probes.is_on

    @property
    def near(self) -> frozenset[int]:
        """Offers that are about to be probed."""
        return self._probes.near

    def follow(self, rule: DepthRule) -> None:
        """Plan by this rule from now on; the same one goes on with what it has learnt."""
        if rule != self._rule:
            self._rule, self._policy = rule, make_policy(rule)
            self.is_off = False  # by the other's judgement
            self._looks.reset()

    def learn_hardware(self, roofline: Roofline) -> None:
        """Take the roofline of hardware that had to be measured; what is learnt already stays."""
        self._roofline = roofline
        if self.step_time.is_blank:
            self._lessons.step_time = StepTimeModel(roofline)

    def expect(self, surroundings: Surroundings, now_s: float) -> None:
        """Plan for a step in these surroundings from now on: the next, as far as it is known."""
        self._surroundings = surroundings
        self._arrivals.advance(now_s)

    def observe_step(self, load: StepLoad, seconds: float, *, is_drafting: bool = False) -> None:
        """Note a finished step, its draft tokens among the load; see `learn`.

        Args:
            load: What it held.
            seconds: How long it took.
            is_drafting: Whether drafts were asked to work beside it.
        """
        if load.num_tokens < 1:
            return  # nothing ran; vLLM still flushes what has ended
        if self._slowdown.is_resting and not is_drafting:
            self._slowdown.observe_rest(seconds, self.step_time.step_s(load))
        else:  # as if drafts worked beside it, so that all that is learnt is alike
            factor = 1.0 if is_drafting else self._slowdown.factor
            self._lessons.note_step(load, factor * seconds)
            if load.is_decode_only:
                is_plain = load.num_tokens <= load.num_requests
                self._plain_turns.observe(load.num_requests, is_plain=is_plain)
        self._load, self._step_s = load, seconds
        if load.is_decode_only:
            self._decode_s = seconds

    def observe_turnaround(
        self, seconds: float, num_requests: int, *, is_speculative: bool
    ) -> None:
        """Learn from the time before a step of so many requests, without waits for proposals."""
        self.overhead.observe(seconds, num_requests, is_speculative=is_speculative)

    def observe_arrival(self, now_s: float) -> None:
        """Note that a request has come."""
        self._arrivals.observe(now_s)

    def intensity(self) -> Intensity | None:
        """Where the latest step stood on the roofline; None where the hardware is not known."""
        is_known = self._roofline is not None and self._load.num_tokens > 0
        return self._roofline.intensity(self._load) if self._roofline and is_known else None

    @property
    def hardware(self) -> str:
        """The name of the hardware's profile; empty if there is none."""
        return self._roofline.hardware.name if self._roofline else ""

    def observe_verification(self, offer: Offer, num_accepted: int) -> None:
        """Note a verification of as many of an offer's tokens as its depth says; see `learn`."""
        if offer.max_depth > 0:
            self._lessons.note_verification(offer, num_accepted, is_probe=self.is_probing)
            self._has_verified = True
            self._policy.observe(offer.max_depth, num_accepted)

    @property
    def is_learning_due(self) -> bool:
        """Whether there is enough to learn from, or something that can't wait."""
        return self._lessons.are_due

    def learn(self) -> None:
        """Learn from all that was noted since the last call.

        Apart from noting it, as it is a good part of the planner's work and the next plans may do
        without: its place is where the next step computes.
        """
        if self._lessons.has_probe:
            self._looks.hasten()
        if self._lessons.learn():
            self._probes.repeat()

    def take_plain_turn(self, num_decoding: int) -> bool:
        """Whether the coming step is to verify nothing, whatever would be planned for it."""
        has_prefill = self._surroundings.num_prefill_tokens > 0
        is_other_trial = self.is_probing or self._slowdown.is_resting
        may_be = self.weighs_costs and not has_prefill and not is_other_trial
        return may_be and self._plain_turns.take(num_decoding)

    def plan(self, offers: Sequence[Offer], num_plain: int, wait_s: float = 0.0) -> DepthPlan:
        """The depths that the policy chooses.

        Args:
            offers: The requests that may speculate.
            num_plain: Further requests that decode in the step.
            wait_s: Time lost before it begins, waiting for these offers' proposals.
        """
        batch = self._batch(len(offers) + num_plain, wait_s)
        if self._surroundings.num_prefill_tokens > 0:
            batch = replace(batch, sunk_s=self._prefill_s(batch))
        return self._policy.plan(self.survival.chains(offers), batch, self.step_time)

    def wanted_depths(
        self,
        offers: Sequence[Offer],
        num_plain: int,
        wait_s: WaitTime,
        *,
        full_wait_s: WaitTime | None = None,
        waited_s: float = 0.0,
        chance: float = 1.0,
        is_beside: bool = False,
    ) -> tuple[int, ...]:
        """How deep the next proposals should be, given the wait for them.

        Some of the requests that are better off at depth 0 are tried with a short proposal now and
        then, in the same step, so that a change for the better is noticed at a bounded cost. Drafts
        that work while the target does rest for a few steps now and then, to see what that costs.
        It is paid whether or not a proposal comes in time, so it is weighed against what those
        bring that do.

        Args:
            offers: The requests to ask for.
            num_plain: Further requests that decode.
            wait_s: For proposals that deep, as things are.
            full_wait_s: For them if every step waited for those that are not there; infinite where
                most would take too long. As things are, if left out.
            waited_s: How long the step before was held back; what a probe's was, later ones pay.
            chance: Of a proposal that is asked for, to be there for its step.
            is_beside: Whether drafts mostly work while the target does.
        """
        self._probes.begin_step(waited_s)
        self._slowdown.is_resting = False
        if not any(offer.max_depth for offer in offers):
            return (0,) * len(offers)  # nobody to ask: says nothing about whether it pays
        self._look_ahead(offers, num_plain)
        extra_s = chance * self.overhead.extra_s  # only steps with proposals pay it
        nothing, num_decoding = (0,) * len(offers), num_plain + len(offers)
        if not self._looks.is_due(num_decoding):
            return self._with_probe(offers, nothing, num_decoding, wait_s, extra_s)
        depth = self._depth_worth_waiting_for(offers, num_plain, full_wait_s or wait_s)
        total_s = wait_s(depth) + extra_s
        speculative = self.plan(at_most(offers, depth), num_plain, total_s)
        if not self.weighs_costs:
            self.is_off = not any(speculative.depths)
            return speculative.depths
        is_worth_it = self._is_worth_it(speculative, num_decoding, chance, total_s)
        if is_beside and is_worth_it and self._slowdown.take_rest():
            return nothing
        depths = speculative.depths if is_worth_it else nothing
        self.is_off = not any(depths)
        self._looks.observe(num_decoding, is_vain=self.is_off)
        return self._with_probe(offers, depths, num_decoding, wait_s, extra_s)

    def _depth_worth_waiting_for(
        self, offers: Sequence[Offer], num_plain: int, wait_s: WaitTime
    ) -> int:
        most = max(offer.max_depth for offer in offers)
        if not self.weighs_costs:
            return most

        def goodput(depth: int) -> float:
            return self.plan(at_most(offers, depth), num_plain, wait_s(depth)).goodput

        return self._answer_depth.choose(most, wait_s, self._decode_s, goodput, self._num_wanted)

    def _is_worth_it(
        self, speculative: DepthPlan, num_decoding: int, chance: float, wait_s: float
    ) -> bool:
        """Whether asking for proposals beats plain decoding, which no draft slows down."""
        least_gain = _LEAST_GAIN if self.is_off else 1.0
        goodput = _goodput_of_both(speculative, num_decoding, chance, wait_s)
        plain = _plain_goodput(speculative, num_decoding)
        return goodput > least_gain * self._slowdown.factor * plain

    def _with_probe(
        self,
        offers: Sequence[Offer],
        depths: tuple[int, ...],
        num_decoding: int,
        wait_s: WaitTime,
        extra_s: float,
    ) -> tuple[int, ...]:
        """The depths, with a short proposal for some that are left out if it is time for that."""
        left_out = [i for i, offer in enumerate(offers) if offer.max_depth > 0 and depths[i] == 0]
        if not left_out:
            if any(depths):
                self._probes.settle(self._step_s)
            return depths
        self.survival.fade([offers[i] for i in left_out], with_sources=self.is_off)
        num_plain = num_decoding - len(offers)
        self._probes.heed_load(num_decoding, lambda: any(self.plan(offers, num_plain).depths))
        probed = self._probes.take(
            left_out,
            self._step_s,
            lambda num_probed: extra_s + self._probe_step_s(num_probed, num_decoding),
            takes_time=lambda: wait_s(PROBE_DEPTH) > wait_s(1) + _SAME_WAIT * self._decode_s,
        )
        if probed:
            self._slowdown.relieve()
            self.overhead.relieve()
        return tuple(
            min(probed[i], offer.max_depth) if i in probed else depth
            for i, (offer, depth) in enumerate(zip(offers, depths, strict=True))
        )

    def with_probes(
        self,
        offers: Sequence[Offer],
        depths: Sequence[int],
        sources: frozenset[Source] = DRAFT_SOURCES,
    ) -> tuple[int, ...]:
        """The depths of a step that verifies what is tried, whether or not that pays.

        Args:
            offers: The requests that may speculate.
            depths: That pay.
            sources: That are tried, as far as there is room for it.
        """
        return with_probes(offers, depths, self._surroundings.max_drafts, sources)

    def _look_ahead(self, offers: Sequence[Offer], num_plain: int) -> None:
        """Compares speculation without waits to plain decoding: what more drafts might bring."""
        self._num_wanted += 1
        if self._num_wanted % _PROSPECT_PERIOD != 1:
            return
        plan = self.plan(offers, num_plain, self.overhead.extra_s)
        plain = _plain_goodput(plan, num_plain + len(offers))
        if plain <= 0 or plan.step_s <= 0:
            return
        gain = plan.goodput / (self._slowdown.factor * plain)
        before = self.prospect
        part = _PROSPECT_GAIN if self._has_verified else _GUESS_GAIN
        part = part if before.gain else 1.0
        self._has_verified = False
        self.prospect = Prospect(
            before.gain + part * (gain - before.gain),
            before.step_s + part * (plan.step_s - before.step_s),
        )

    @property
    def weighs_costs(self) -> bool:
        """Whether the policy does: see `DepthPolicy`."""
        return self._policy.weighs_costs

    def _probe_step_s(self, num_probed: int, num_decoding: int) -> float:
        """Seconds that a step with a probe computes longer."""
        load = self._batch(num_decoding, 0.0).load
        steps_s = self.step_time.predict(
            load, np.arange(PROBE_DEPTH * num_probed + 1, dtype=np.float64)
        )
        return float(steps_s[-1] - steps_s[0])

    def _batch(self, num_decoding: int, wait_s: float) -> Batch:
        around = self._surroundings
        load = StepLoad(
            num_decoding + around.num_prefills,
            num_decoding + around.num_prefill_tokens,
            around.num_kv_tokens,
            around.num_sampled,
            around.num_prefill_tokens,
        )
        return Batch(
            *(load, num_decoding, around.max_drafts, wait_s),
            arrivals_per_s=self._arrivals.per_s,
            prudence=_PRUDENCE,
        )

    def _prefill_s(self, batch: Batch) -> float:
        """How much longer the step takes for its prefills."""
        num_decoding = batch.num_sure
        decode = batch.load._replace(
            num_requests=num_decoding, num_tokens=num_decoding, num_prefill_tokens=0
        )
        return max(0.0, self.step_time.step_s(batch.load) - self.step_time.step_s(decode))


def _plain_goodput(plan: DepthPlan, num_decoding: int) -> float:
    """Of the plan's step without drafts."""
    return num_decoding / plan.plain_s if plan.plain_s > 0 else 0.0


def _goodput_of_both(
    speculative: DepthPlan, num_decoding: int, chance: float, wait_s: float
) -> float:
    """Commits per second of steps of which some have their proposals and the others have none.

    The wait is one that is lost on average, and part of the speculative plan.
    """
    if math.isinf(wait_s):
        return 0.0
    drafted_s = speculative.step_s - wait_s
    step_s = wait_s + chance * drafted_s + (1 - chance) * speculative.plain_s
    commits = chance * speculative.num_expected + (1 - chance) * num_decoding
    return commits / step_s if step_s > 0 else 0.0
