"""How deep the engine's own drafter drafts, and what that takes."""

from collections.abc import Callable, Sequence

from specray.control.depth import DepthPlan
from specray.control.load_size import is_other_size
from specray.control.overhead import follow_mean

_PERIOD = 16  # steps between two looks, as one takes a plan for each depth
_FIRST_PERIOD = 4  # steps until the first look, when drafting has been timed
_LEAST_GAIN = 1.02  # over plain decoding that is expected before it is taken up again
_BEATEN_GAIN = 0.02  # of each proposal, in how often something better is there; more at first
_PROMPTS_GAIN = 0.01  # of each step, in what reading prompts takes
_TRIAL_STEPS = 32  # with drafting, at most
_TRIAL_VERIFICATIONS = 16  # that are enough to judge by
_SETTLING_STEPS = 256  # after it is taken up, until those requests have mostly gone that it missed
_BUDGET = 0.005  # of the time: what trials may cost, by the pauses between them
_PAUSES = 64, 32768  # steps without it before a trial, at least and at most


class DraftingTime:
    """How long drafting takes, by tokens for each request, apart for loads of each size."""

    def __init__(self) -> None:
        self._means_s: dict[tuple[int, int], float] = {}  # by powers of two of requests, and depth

    def observe(self, depth: int, num_requests: int, seconds: float) -> None:
        """Learn from a step that only decodes; its depth is at least 1."""
        key = num_requests.bit_length(), depth
        self._means_s[key] = follow_mean(self._means_s.get(key), seconds)

    def expected_s(self, depth: int, num_requests: int) -> float:
        """Seconds for so many tokens; 0 before anything is known.

        What is not known takes as long for each token as what is nearest to it, in load first.
        """
        if depth < 1 or not self._means_s:
            return 0.0
        size = num_requests.bit_length()
        nearest = min(
            self._means_s, key=lambda known: (abs(known[0] - size), abs(known[1] - depth))
        )
        return self._means_s[nearest] * depth / nearest[1]


class DraftingDepth:
    """Chooses how many tokens are drafted for each request behind the coming step.

    It is decided a step ahead, and paid whether or not they are verified, so it is weighed against
    plain decoding by what steps like the present one bring. Where it does not pay the drafter does
    not run at all, but for a trial now and then, after a pause that pays for it.
    """

    def __init__(self, most: int, *, is_fixed: bool = False) -> None:
        """Takes the most that it can draft; fixed: it drafts as many or none."""
        self.time = DraftingTime()
        self.depth = most
        self.is_trying = False  # whether it drafts only to see what that brings
        self._most = most
        self._is_fixed = is_fixed
        self._load = 1  # requests at the latest look
        self._num_steps = _PERIOD - _FIRST_PERIOD  # since then
        self._num_rested = 0  # steps since the latest that it drafted behind
        self._num_drafted = self._num_verified = 0  # steps with drafting, and proposals, in a trial
        self._num_on = _SETTLING_STEPS  # steps since it was taken up
        self._trial_s = 0.0  # that it has drafted in a trial, and while it settled
        self._pause = _PAUSES[0]
        self._beaten = 0.0  # share of its proposals in whose place something better was there
        self._num_choices = 0  # that this was learnt from
        self._prompts_s = 0.0  # that it takes to read them, of each step

    @property
    def is_settling(self) -> bool:
        """Whether many requests may be there that it can't draft for, but will have gone soon."""
        return self.is_trying or self._num_on < _SETTLING_STEPS

    def observe_choice(self, *, is_beaten: bool) -> None:
        """Whether something else was verified for a request that it had drafted for."""
        self._num_choices += 1
        gain = max(_BEATEN_GAIN, 1 / self._num_choices)
        self._beaten += gain * (is_beaten - self._beaten)

    def observe_verification(self) -> None:
        """A step has verified a proposal of its."""
        self._num_verified += 1

    def observe_drafting(
        self, depth: int, num_requests: int, seconds: float, *, is_decode_only: bool
    ) -> None:
        """It has drafted behind a step, whose prompts it reads too if there are any."""
        self._num_drafted += 1
        self._num_on += 1
        self._num_rested = 0
        if self.is_settling:
            self._trial_s += seconds
        if not seconds > 0:
            return  # it could not
        prompts_s = 0.0 if is_decode_only else seconds
        self._prompts_s += _PROMPTS_GAIN * (prompts_s - self._prompts_s)
        if is_decode_only:
            self.time.observe(depth, num_requests, seconds)

    def stop(self) -> None:
        """Nothing may be verified, whatever is drafted."""
        self.depth, self.is_trying = 0, False

    def follow(self, most: int, depths: Sequence[int]) -> None:
        """Draft what a rule that weighs no costs would verify.

        Args:
            most: Tokens that may be verified of a request.
            depths: By the rule, of requests with as many.
        """
        wanted = min(most, max(depths, default=0))
        self.depth = self._most if self._is_fixed and wanted > 0 else wanted
        self.is_trying = False

    def choose(self, most: int, num_decoding: int, plan: Callable[[int, float], DepthPlan]) -> None:
        """Set `depth` for the coming step.

        Args:
            most: Tokens that may be verified of a request, at least 1.
            num_decoding: Requests that decode.
            plan: Of a step that verifies at most so many tokens of each request, and begins so many
                seconds later as they have to be drafted.
        """
        self._num_steps += 1
        self._num_rested += 1
        if self._is_look_due(num_decoding):
            self._look(most, num_decoding, plan)

    def _is_look_due(self, num_decoding: int) -> bool:
        if self.is_trying:
            is_enough = self._num_verified >= _TRIAL_VERIFICATIONS
            return is_enough or self._num_drafted >= _TRIAL_STEPS
        if self.depth == 0 and self._num_rested >= self._pause:
            self._try()
            return False
        if is_other_size(num_decoding, self._load):
            return True
        return self.depth > 0 and self._num_steps >= _PERIOD

    def _try(self) -> None:
        self.depth = self._most if self._is_fixed else 1
        self.is_trying = True
        self._num_drafted = self._num_verified = 0
        self._trial_s = 0.0
        self._beaten, self._num_choices = 0.0, 0

    def _look(self, most: int, num_decoding: int, plan: Callable[[int, float], DepthPlan]) -> None:
        choices = [self._most] if self._is_fixed else list(range(1, min(most, self._most) + 1))
        plain_s = plan(choices[0], 0.0).plain_s
        if not plain_s > 0:
            return  # nothing is known of steps yet
        was_off = self.depth == 0 or self.is_trying
        gains = {depth: self._gain(depth, num_decoding, plan) for depth in choices}
        best = max(gains, key=lambda depth: gains[depth])
        is_on = gains[best] > (_LEAST_GAIN if was_off else 1.0)
        is_young = self.is_trying or self._num_on <= _SETTLING_STEPS + _PERIOD
        spent_s = self._trial_s if is_young else 0.0
        if is_on and was_off:
            self._num_on = 0
            self._trial_s = spent_s if self.is_trying else 0.0
        self._load, self._num_steps, self.is_trying = num_decoding, 0, False
        self.depth = best if is_on else 0
        trial_s = max(spent_s, _TRIAL_STEPS * self.time.expected_s(choices[0], num_decoding))
        shortest, longest = _PAUSES
        self._pause = min(max(shortest, round(trial_s / (_BUDGET * plain_s))), longest)

    def _gain(
        self, depth: int, num_decoding: int, plan: Callable[[int, float], DepthPlan]
    ) -> float:
        """Over plain decoding, where the time for drafting is paid in any case."""
        drafting_s = self.time.expected_s(depth, num_decoding)
        planned = plan(depth, drafting_s)
        chance = 1 - self._beaten
        commits = chance * planned.num_expected + self._beaten * num_decoding
        computed_s = chance * (planned.step_s - drafting_s) + self._beaten * planned.plain_s
        seconds = self._prompts_s + drafting_s + computed_s
        return commits / seconds * planned.plain_s / num_decoding
