"""Whom a step waits for, and for how long."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from specray.control.latency import AnswerTime
from specray.target.session import Session

_PATIENT_WAITS = 2  # in vain in a row; nobody waits for a session any longer until it answers
_PATIENT_ASKS = 16  # in a row without a word, awaited or not; then an answer is asked for
_GAIN = 0.05  # of each step, in how many commits are behind and whether one waits for those
_STEP_GAIN = 0.04  # of each step, in how many proposals are lost or waited for
_USE_GAIN, _TRIAL_GAIN = 0.1, 0.2  # likewise, and of each trial, in how many are not worth it
_LEAST_CHANCE = 0.02  # of a proposal to be there: nobody is given up for good
_RELIEF, _GREAT_RELIEF = 0.95, 0.8  # of the rate of lost ones, kept at each trial and good trial
_UNDECIDED, _HARDLY_AHEAD = 0.75, 0.9  # rates of those behind: to begin with, and too high
_AHEAD = 0.6  # rate of those behind below which drafts do get ahead
_MOSTLY_AHEAD = 0.4  # likewise, and below which what is behind does not decide
_LAST_CHANCE = 16  # tries of what has been given up, before it is assumed again that drafts might
_ROUNDING = 0.05  # of a token, by which a share may be off
_MOSTLY = 0.6  # of proposals, at most, that are waited for where drafts work beside the target
_FIRST_TRIAL, _LAST_TRIAL = 8, 128  # refusals to wait before a trial; each doubles up to this
_PATIENT_SILENCE = 4  # waits in vain in a row for all of a router's sessions; then nobody does


@dataclass
class _Seen:
    """What was seen of proposals while targets had about so many requests."""

    answer_time: AnswerTime = field(default_factory=AnswerTime)  # to what was not drafted ahead for
    behind_rate: float = _UNDECIDED  # of commits whose proposal was not drafted ahead
    answer_share: float = 1.0  # of the tokens that are asked for, in such an answer
    refusal_rate: float = 0.0  # of these, how many were not worth a wait
    lost_rate: float = 0.0  # of proposals, which their step began without
    unused_rate: float = 0.0  # of the others, which were worth less than was thought
    awaited_rate: float = _UNDECIDED  # of proposals, which their step was held back for
    num_refusals: int = 0  # since the latest wait or trial
    trial_pause: int = _FIRST_TRIAL
    num_chances: int = 0  # since it was last assumed that drafts might get ahead
    chance_pause: int = 1

    def improve(self, other: "_Seen") -> None:
        """Take over what is better elsewhere."""
        self.behind_rate = min(self.behind_rate, other.behind_rate)
        self.lost_rate = min(self.lost_rate, other.lost_rate)
        self.unused_rate = min(self.unused_rate, other.unused_rate)
        ours_s, others_s = self.answer_time.mean_s(1), other.answer_time.mean_s(1)
        if ours_s is not None and others_s is not None and others_s < ours_s:
            self.answer_time = deepcopy(other.answer_time)


class Patience:
    """Learns from waits how long a proposal takes, and which sessions and routers are silent.

    Apart for loads of each size: a draft answers many requests later than one, so that what was
    given up under load would long be left alone after it.

    Only a wait in vain is held against anyone: no step allows for drafting. And only proposals
    that are awaited are timed: a running step keeps its process from taking them in. Proposals
    that were there before their commit are counted, but say nothing of how long others take.
    """

    def __init__(self) -> None:
        self._size = 0  # of the coming step's load
        self._num_asked = 1  # requests that were asked for, for that step
        self._seen = _Seen()  # of such loads
        self._by_load: dict[int, _Seen] = {}  # by powers of two of the requests
        self._silence: dict[str, int] = {}  # router -> waits in vain in a row

    def face(self, num_requests: int) -> None:
        """The coming step holds so many requests that decode.

        A load of another size is judged by what was seen of it last, the first time by what was
        seen of the nearest smaller one: more requests are not answered more promptly than fewer.
        So what makes fewer seem worse than those that there were just now is no longer true. None
        at all, as between two loads, is no load.
        """
        size = num_requests.bit_length()
        if size in (0, self._size):
            return
        if size not in self._by_load:
            smaller = max((known for known in self._by_load if known < size), default=None)
            seen = _Seen() if smaller is None else deepcopy(self._by_load[smaller])
            self._by_load[size] = seen
        elif size < self._size:
            self._by_load[size].improve(self._seen)
        self._size, self._seen = size, self._by_load[size]

    def ask(self, num_requests: int) -> None:
        """Proposals are asked for so many requests, whose fates are one step's."""
        self._num_asked = max(1, num_requests)

    def expected_wait_s(self, max_wait_s: float, wanted: int) -> float:
        """How long a commit's proposal holds its step back, on average; infinite: it can't pay.

        Nothing where it was drafted ahead, and nothing where a step goes on without it.

        Args:
            max_wait_s: the longest that a step waits.
            wanted: tokens that are asked for.
        """
        answer_s = self.answer_s(max_wait_s, wanted)
        if self._seen.behind_rate > _HARDLY_AHEAD:
            return answer_s
        waited_s = answer_s if math.isfinite(answer_s) else 0.0
        return self._seen.behind_rate * (1 - self._seen.refusal_rate) * waited_s

    def full_wait_s(self, max_wait_s: float, wanted: int) -> float:
        """How long that is if steps waited for whatever was not drafted ahead.

        Infinite, too, where most such waits would end too early; but where drafts mostly get ahead
        a step waits in vain for the rest at most, which is no reason to ask for less.
        """
        num_tokens = self.expected_tokens(wanted)
        mostly_s = self._seen.answer_time.mostly_s(num_tokens) or 0.0
        answer_s = math.inf if mostly_s > max_wait_s else self.answer_s(max_wait_s, wanted)
        if self._seen.behind_rate < _MOSTLY_AHEAD:
            answer_s = min(answer_s, max_wait_s)
        return self._seen.behind_rate * answer_s

    @property
    def chance(self) -> float:
        """Of a proposal that is asked for, to be there for its step and verified; more than 0."""
        return max(_LEAST_CHANCE, (1 - self._seen.lost_rate) * (1 - self._seen.unused_rate))

    @property
    def is_beside(self) -> bool:
        """Whether drafts mostly work while the target does, not while it waits for them."""
        return self._seen.awaited_rate < _MOSTLY

    def answer_s(self, max_wait_s: float, wanted: int) -> float:
        """From a commit to its answer; infinite when no step waits for so long."""
        mean_s = self._seen.answer_time.mean_s(self.expected_tokens(wanted)) or 0.0
        return mean_s if mean_s <= max_wait_s else math.inf

    def deadline(self, awaited: Sequence[Session], max_wait_s: float) -> float:
        """When to go on without those that are still missing; one for the whole batch."""
        num_tokens = max(self.expected_tokens(session.wanted_depth) for session in awaited)
        patience_s = self._seen.answer_time.patience_s(num_tokens)
        wait_s = max_wait_s if patience_s is None else min(max_wait_s, patience_s)
        return max(session.committed_at for session in awaited) + wait_s

    def has_left_for(self, session: Session) -> bool:
        """Whether the session, or its router, has not been silent for too long."""
        is_silent = self._silence.get(session.router, 0) >= _PATIENT_SILENCE
        return session.num_silent < _PATIENT_WAITS and not is_silent

    def is_in_doubt(self, session: Session) -> bool:
        """Whether it is time for the session's draft to say something, though nobody waits."""
        return session.num_unheard >= _PATIENT_ASKS or not self.has_left_for(session)

    def hear_of(self, session: Session) -> None:
        """A proposal came for the session, in time or late."""
        session.num_silent = session.num_unheard = 0
        self.hear_of_router(session.router)

    def hear_of_router(self, router: str) -> None:
        """A proposal came through it, if only after its session's end.

        Where requests end soon all its proposals may, and nobody would ever wait for it again.
        """
        self._silence.pop(router, None)

    def expected_tokens(self, wanted: int) -> int:
        """How many an answer brings, where so many are wanted: a draft may go on ahead instead."""
        return min(wanted, max(1, math.ceil(self._seen.answer_share * wanted - _ROUNDING)))

    def observe_answer(self, session: Session, arrived: float, num_tokens: int = 0) -> None:
        """The session's commit was answered; earlier than it was sent if drafted ahead.

        Args:
            session: whose.
            arrived: when.
            num_tokens: in the answer; none says nothing of others.
        """
        is_behind = arrived > session.committed_at
        self._observe_behind(session, is_behind=is_behind)
        if not is_behind:
            return
        self._seen.answer_time.observe(max(1, num_tokens), arrived - session.committed_at)
        if num_tokens and session.wanted_depth:
            share = min(1.0, num_tokens / session.wanted_depth)
            self._seen.answer_share += _GAIN * (share - self._seen.answer_share)

    def observe_absence(self, session: Session) -> None:
        """A step begins without a proposal that is due."""
        self._observe_behind(session, is_behind=True)

    def _observe_behind(self, session: Session, *, is_behind: bool) -> None:
        """A step's share their fate, so that they count as one, like its losses.

        Nothing can have been drafted ahead for what ends a pause: it says nothing of that.
        """
        if not session.is_resumed:
            gain = _GAIN / self._num_asked
            self._seen.behind_rate += gain * (is_behind - self._seen.behind_rate)
            if self._seen.behind_rate < _AHEAD:
                self._seen.chance_pause = 1

    def observe_step(
        self, num_due: int, num_lost: int, num_awaited: int, *, is_trial: bool
    ) -> None:
        """A step begins; its proposals share their fate, so that they count as one.

        Args:
            num_due: proposals that were asked for.
            num_lost: those of them that are not there, or are empty.
            num_awaited: those that the step was held back for.
            is_trial: whether they were asked for just to see; a draft that only helps when it is
                ahead can't be, so that what it loses says nothing.
        """
        if num_due == 0:
            return
        seen = self._seen
        if not is_trial:
            seen.lost_rate += _STEP_GAIN * (num_lost / num_due - seen.lost_rate)
            seen.awaited_rate += _STEP_GAIN * (num_awaited / num_due - seen.awaited_rate)
        elif num_lost == 0:
            seen.lost_rate *= _GREAT_RELIEF

    def observe_use(self, num_used: int, num_worse: int, *, is_trial: bool) -> None:
        """A step has proposals, of which some are not worth verifying by what came with them.

        What is learnt of acceptance does not tell of those, as it comes from what is verified.

        Args:
            num_used: proposals that were asked for, and are worth it, be it not just to see.
            num_worse: those that are not, and would be if they were as was thought.
            is_trial: whether they were asked for just to see.
        """
        num_told = num_used + num_worse
        if num_told == 0:
            return
        gain = _TRIAL_GAIN if is_trial else _USE_GAIN
        self._seen.unused_rate += gain * (num_worse / num_told - self._seen.unused_rate)

    def give_a_chance(self, max_wait_s: float, *, is_alone: bool) -> None:
        """Speculation is tried again: a draft that is too slow may meanwhile draft ahead.

        Args:
            max_wait_s: the longest that a step waits.
            is_alone: whether it is for all that decode, so that its answers tell what others would
                take. What a draft answers for few of many says nothing of that.
        """
        self._seen.lost_rate *= _RELIEF
        if is_alone:
            self._seen.answer_time.fade()
        self._seen.num_chances += 1
        is_due = self._seen.num_chances >= self._seen.chance_pause
        if is_due or math.isinf(self.answer_s(max_wait_s, 1)):
            self._seen.behind_rate = min(self._seen.behind_rate, _UNDECIDED)
        if is_due:
            self._seen.num_chances = 0
            self._seen.chance_pause = min(2 * self._seen.chance_pause, _LAST_CHANCE)

    @property
    def is_trial_due(self) -> bool:
        """Whether to wait though it doesn't seem worth it, to learn how long answers take now."""
        return self._seen.num_refusals >= self._seen.trial_pause

    def observe_trial(self) -> None:
        """A step waits for that reason."""
        self._seen.num_refusals = 0
        self._seen.trial_pause = min(2 * self._seen.trial_pause, _LAST_TRIAL)

    def observe_refusal(self) -> None:
        """A step goes on without what it might have waited for."""
        self._seen.num_refusals += 1
        self.observe_no_need()

    def observe_no_need(self) -> None:
        """A step goes on without what it knows anyway: no reason to try a wait."""
        self._seen.refusal_rate += _GAIN * (1 - self._seen.refusal_rate)

    def observe_wait(
        self, awaited: Sequence[Session], silent: Sequence[Session], deadline: float
    ) -> None:
        """A wait has ended, in vain for the silent among the awaited."""
        self._seen.refusal_rate -= _GAIN * self._seen.refusal_rate
        if silent:
            self._take_longer(awaited, deadline)
        else:
            self._seen.num_refusals, self._seen.trial_pause = 0, _FIRST_TRIAL
        for session in silent:
            session.num_silent += 1
        silent_ids = {session.session_id for session in silent}
        heard_of = {s.router for s in awaited if s.session_id not in silent_ids}
        for router in {s.router for s in silent} - heard_of:
            self._silence[router] = self._silence.get(router, 0) + 1

    def observe_overdue(self, awaited: Sequence[Session], deadline: float) -> None:
        """A step can't wait for what should have been here by a deadline before it could begin."""
        self._take_longer(awaited, deadline)
        self.observe_refusal()

    def _take_longer(self, awaited: Sequence[Session], deadline: float) -> None:
        """Proposals take longer than until then; assume twice as long."""
        num_tokens = max(self.expected_tokens(session.wanted_depth) for session in awaited)
        waited_s = deadline - max(session.committed_at for session in awaited)
        self._seen.answer_time.observe(num_tokens, 2 * waited_s)

    def forget(self, router: str) -> None:
        """The router has gone; it may never come back, and if it does, with another draft."""
        self._silence.pop(router, None)
