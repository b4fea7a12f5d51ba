"""Draft ahead: while a proposal is verified, its likely outcomes are drafted for.

Exactness. A continuation is verified as any proposal, so all that counts is that its tokens were
drawn, given what stands before them, from the distributions that it ships. They are: each is drawn
when its place is reached, with randomness that nothing else has used, after the added token was
fixed. Which outcomes are drafted for, how deep, and when they are sent, depends on the proposal
that is being verified, on earlier commits and on the clock: all of that comes before the
continuation's own tokens, and none of it looks at them. What selects a continuation is the commit,
that is the proposal's tokens and the target's randomness; a random number that a proposal and a
continuation shared would tie the continuation's tokens to that event, and bias them
(`tests/sampling/test_reference.py` shows both).
"""

import math
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np

from specray.draft.ahead_pass import AheadPass
from specray.draft.branch import Branch
from specray.draft.decoding import Decoder
from specray.draft.followed import Followed
from specray.draft.kv_pool import KvPool
from specray.draft.language_model import LanguageModel
from specray.draft.model_session import ModelSession
from specray.draft.outcomes import InFlight, Outcome, OutcomeModel
from specray.draft.pace import Rhythms, answer_depth
from specray.draft.rollout import Draft
from specray.types import Commit, Proposal, TruncatedDistributions

_NO_CANDIDATES = TruncatedDistributions(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32))


class DraftAhead:
    """Drafts for the likely outcomes of what is in flight, all in one batch, pass by pass."""

    def __init__(
        self,
        model: LanguageModel,
        decoder: Decoder,
        pool: KvPool,
        fan_out: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes what it shares with the proposer.

        Args:
            model: the draft.
            decoder: runs its passes.
            pool: where branches keep their keys and values; they evict nobody.
            fan_out: branches per session that is in flight; 0 drafts nothing ahead.
            clock: in seconds.
        """
        self._clock = clock
        self._rhythms = Rhythms()
        self.is_on = fan_out > 0
        self._fan_out = fan_out
        self.outcomes = OutcomeModel()
        self._pool = pool
        self._pass = AheadPass(model, decoder, pool, self.outcomes, fan_out, clock)
        self._max_length = min(model.max_positions, pool.capacity)
        self._followed: dict[int, Followed] = {}

    # The life of a proposal.

    def send(self, session: ModelSession, draft: Draft) -> None:
        """Begins to prepare for what becomes of an answer that is sent now."""
        if self.is_on and draft.candidates is not None:
            flight = InFlight(draft.token_ids, draft.candidates, was_ahead=False)
            self._begin(session, flight, len(draft.token_ids) - 1, is_answered=True)

    def follow(self, session: ModelSession, token_ids: Sequence[int]) -> None:
        """Begins to prepare for what becomes of an answer that somebody else has sent."""
        self.drop(session.session_id)
        if self.is_on and session.depth > 0:
            flight = InFlight(tuple(token_ids), _NO_CANDIDATES, was_ahead=False)
            self._begin(session, flight, 0, is_answered=True)

    def is_answered(self, session_id: int) -> bool:
        """Whether the target has, or will have, an answer to the session's last commit."""
        followed = self._followed.get(session_id)
        return followed is not None and followed.is_answered

    def leave_unanswered(self, session: ModelSession) -> bool:
        """Whether the session's outcomes are better prepared for than its commit answered.

        True where the target has the answer already. Where no step is held back for one, it would
        come too late: the step adds a token, whose outcomes can be drafted for at once.
        """
        followed = self._followed.get(session.session_id)
        if followed is not None:
            return followed.is_answered
        if not (self.is_on and session.is_unawaited) or len(session) >= self._max_length:
            return False
        flight = InFlight((), _NO_CANDIDATES, was_ahead=False)
        self._begin(session, flight, 0, is_answered=True)
        return True

    def answer_depth(self, sessions: Sequence[ModelSession]) -> int:
        """How deep to answer these sessions, whose target may wait: what follows comes ahead."""
        most = max((session.depth for session in sessions), default=0)
        if not self.is_on:
            return most
        survivals = [self.outcomes.survival_rate(session.sampling) for session in sessions]
        now_s = self._clock()
        rhythms = [self._rhythms.of(session.target) for session in sessions]
        rhythms += [
            followed.rhythm
            for followed in self._followed.values()
            if followed.rhythm.is_running(now_s - followed.began_s)
        ]
        return answer_depth(most, survivals, rhythms, self._pass.expected_s(len(sessions)))

    def take_partial(self, session: ModelSession) -> Proposal | None:
        """What there is of a continuation whose outcome came before it was sent."""
        followed = self._followed.get(session.session_id)
        if followed is None or followed.is_answered:
            return None
        followed.is_answered = True
        flight = followed.flight
        q = flight.candidates.prefix(len(flight.token_ids))
        if session.sampling.is_greedy:
            return session.proposal(flight.token_ids, "model", confidences=q.largest())
        return session.proposal(flight.token_ids, "model", q)

    def settle(self, session: ModelSession, commit: Commit, reserve: Callable[[int], bool]) -> None:
        """Makes the branch that a commit has chosen the session, and frees the others.

        Args:
            session: already extended by the commit.
            commit: what was added.
            reserve: makes room in the session's memory for so many tokens.
        """
        followed = self._followed.pop(session.session_id, None)
        if followed is None:
            return
        self._observe_times(followed, commit)
        flight = followed.flight
        # A target may guess behind all that it was sent: what was added there is `more`.
        num_accepted = min(len(commit.token_ids) - 1, len(flight.token_ids))
        added, more = commit.token_ids[num_accepted], commit.token_ids[num_accepted + 1 :]
        if commit.token_ids[:num_accepted] == flight.token_ids[:num_accepted]:
            self.outcomes.observe(flight, commit.token_ids, session.sampling)
            if followed.is_answered:
                followed.rhythm.observe_verification(
                    flight.token_ids, commit.token_ids, was_ahead=flight.was_ahead
                )
            chosen = followed.branches.pop((num_accepted, added), None)
            self._release(followed)  # before anybody else has to make room
            if commit.depth > 0:
                if chosen is not None and chosen.token_ids:
                    self._promote(chosen, more, reserve)
                elif flight.token_ids[num_accepted : num_accepted + 1] == (added,):
                    self._keep_rest(followed, num_accepted + 1)
            if chosen is not None:
                self._pool.release(chosen.tail)
        self._release(followed)

    def drop(self, session_id: int) -> None:
        """Frees what is prepared for a session; unknown ids are ignored."""
        followed = self._followed.pop(session_id, None)
        if followed is not None:
            self._release(followed)

    def leave_out(self, session_id: int, outcomes: Collection[Outcome]) -> None:
        """Somebody else has prepared for these outcomes."""
        followed = self._followed.get(session_id)
        if followed is not None:
            followed.left_out = frozenset(outcomes)

    def drop_all(self) -> bool:
        """Frees all branches for those who need memory more; whether there were any."""
        held = [followed for followed in self._followed.values() if followed.branches]
        for followed in held:
            sent = [branch for branch in followed.branches.values() if branch.num_sent]
            # Drawn anew for the same commit they would contradict themselves.
            followed.left_out |= {(branch.position, branch.added) for branch in sent}
            self._release(followed)
        return bool(held)

    def _observe_times(self, followed: Followed, commit: Commit) -> None:
        was_ahead = followed.flight.was_ahead
        if commit.depth > 0:
            followed.rhythm.observe_flight(
                self._clock() - followed.began_s, len(commit.token_ids), was_ahead=was_ahead
            )
        if was_ahead and not followed.is_rest:  # a rest has been there since before
            followed.rhythm.observe_continuation(is_in_time=not commit.was_late)

    def _promote(self, branch: Branch, more: Sequence[int], reserve: Callable[[int], bool]) -> None:
        """Makes a branch the session, of whose tokens the target has added some (`more`) itself."""
        session, token_ids, start = branch.session, tuple(branch.token_ids), len(more)
        num_own = len(token_ids)
        num_flying = branch.num_sent or num_own  # what was drawn behind is not what is verified
        if token_ids[:start] != tuple(more) or num_flying <= start:
            return
        stop = branch.num_shared + num_own
        if session.num_cached != branch.num_shared or not reserve(stop):
            return
        session.states[:, :, branch.num_shared : stop] = branch.tail[:, :, :num_own]
        num_fed = min(num_flying, num_own - 1) - start
        session.set_cached(len(session), ahead=token_ids[start : start + num_fed])
        candidates = branch.candidates.prefix(num_flying + 1).rest(start)
        is_sent = branch.num_sent > 0
        flight = InFlight(token_ids[start:num_flying], candidates, was_ahead=is_sent)
        self._begin(session, flight, num_fed, is_answered=is_sent, is_rest=start > 0)

    def _keep_rest(self, followed: Followed, start: int) -> None:
        """Follows what is left, also at the target, when that has added a proposed token."""
        session, flight = followed.session, followed.flight
        token_ids = flight.token_ids[start:]
        if not token_ids or session.num_uncached or start > followed.num_fed:
            return
        num_fed = followed.num_fed - start
        session.set_cached(len(session), ahead=token_ids[:num_fed])
        rest = flight.candidates.rest(start)
        is_there = followed.is_answered
        flight = InFlight(token_ids, rest, was_ahead=is_there)
        self._begin(session, flight, num_fed, is_answered=is_there, is_rest=True)

    def _begin(
        self,
        session: ModelSession,
        flight: InFlight,
        num_fed: int,
        *,
        is_answered: bool,
        is_rest: bool = False,
    ) -> None:
        rhythm, now_s = self._rhythms.of(session.target), self._clock()
        self._followed[session.session_id] = Followed(
            *(session, flight, num_fed, is_answered, rhythm),
            is_rest=is_rest,
            is_silent=flight.was_ahead and not session.is_unawaited,
            began_s=now_s,
        )

    def _release(self, followed: Followed) -> None:
        for branch in followed.branches.values():
            self._pool.release(branch.tail)
        followed.branches.clear()

    def limit_fan_out(self, most: int) -> None:
        """See `LimitsFanOut`; at 0 answers are what a target gets."""
        self.is_on = min(most, self._fan_out) > 0
        self._pass.limit_fan_out(most)

    @property
    def computed_for(self) -> Collection[int]:
        """The sessions of which the latest `run_pass` has computed something."""
        return self._pass.computed_for

    def run_pass(self) -> list[Proposal] | None:
        """Computes one more token of what is prepared; what is complete is to be sent.

        Or, instead, hands out what there is: of continuations that would come too late after one
        more pass, or are not worth one, and before a pass that may be the last in time, as one
        commit in four comes earlier than expected. These may come again, longer. Returns None if
        there was nothing to do.
        """
        now_s = self._clock()
        growing, sent, least_left_s, loss = [], [], math.inf, 0.0
        for followed in self._followed.values():
            if not followed.is_answered:
                continue  # its tokens, on which rows depend, have yet to leave
            elapsed_s = now_s - followed.began_s
            was_ahead = followed.flight.was_ahead
            left_s = followed.rhythm.left_s(elapsed_s, was_ahead=was_ahead)
            if followed.rhythm.is_running(elapsed_s):  # else it rests, and no commit will wait
                loss += followed.rhythm.pass_loss(elapsed_s, was_ahead=was_ahead)
            if left_s < self._pass.expected_s(1):
                sent += followed.close()
                continue
            if left_s < 2 * self._pass.usual_s:
                sent += followed.send()
            growing.append(followed)
            if not followed.is_complete:
                least_left_s = min(least_left_s, left_s)
        if sent:  # at once: a pass takes long
            self._pass.skip()
            return sent
        complete = self._pass.run(growing, least_left_s, loss)
        if complete is not None:
            self._rhythms.observe_pass()
            return complete
        for followed in growing:
            sent += followed.close()
        return sent or None
