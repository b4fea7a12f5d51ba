"""The speculation of one engine: which proposals a step verifies, and what is learnt of it.

Knows nothing of vLLM; `scheduler` calls it, from the engine's thread only.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from specray.config import MAX_DEPTH
from specray.control.planner import Planner, Surroundings
from specray.control.roofline import StepLoad
from specray.control.survival import Offer
from specray.target.buffer import ProposalBuffer
from specray.target.counters import Counters
from specray.target.engine_drafts import NO_DRAFTER, Drafter, EngineDrafts
from specray.target.offers import Offers
from specray.target.patience import Patience
from specray.target.session import Session
from specray.target.stop_gap import StopGap
from specray.target.taking import Taking
from specray.target.telling import Streams, Telling
from specray.target.use import Share, Use
from specray.target.verified import verified_pieces
from specray.target.waiting import Wait, Waiting
from specray.types import OWN_SOURCES, STOP_GAPS, Proposal, Source
from specray.wire.stats import TargetStats


class Speculation:
    """Sessions and their proposals; who does what for them are its collaborators."""

    def __init__(
        self,
        buffer: ProposalBuffer,
        streams: Streams,
        clock: Callable[[], float] = time.monotonic,
        planner: Planner | None = None,
        patience: Patience | None = None,
        stop_gap: StopGap | None = None,
        name: str = "",
        drafter: Drafter = NO_DRAFTER,
        has_drafts: bool = True,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        """Takes who knows what.

        Args:
            buffer: where proposals arrive.
            streams: the way to the routers.
            clock: in seconds.
            planner: chooses the depths; one that knows nothing yet if left out.
            patience: knows whom to wait for; likewise.
            stop_gap: proposes where nobody else does; one that only copies if left out.
            name: of the engine, as no other that shares its drafts is called.
            drafter: vLLM's own, inside the engine.
            has_drafts: whether there are any outside.
            max_depth: draft tokens that the engine has room for, of one request.
        """
        self._buffer = buffer
        self._streams = streams
        self._clock = clock
        self._planner = planner or Planner(streams.policy.depth_rule)
        self._patience = patience or Patience()
        self._offers = Offers(streams, max_depth)
        self._waiting = Waiting(buffer, self._offers, self._planner, self._patience, clock)
        self._use = Use(self._offers, self._planner, self._patience)
        self._telling = Telling(streams, clock, name)
        self._counters = Counters(buffer)
        self._stop_gap = stop_gap or StopGap()
        self.engine = EngineDrafts(drafter, self._offers, self._planner)
        self._taking = Taking(
            *(buffer, streams, self._planner, self._patience, self._offers),
            *(self._stop_gap, self._counters, self.engine),
        )
        self._has_drafts = has_drafts
        self._sessions: dict[int, Session] = {}
        self._is_drafting = False  # whether the latest commits asked for proposals
        self._num_awaited = 0  # proposals that the coming step was held back for
        self._num_due_and_lost = 0  # that will not come, as their draft has let go of the session
        self._waited_s = 0.0  # how long
        self._is_plain_turn = False  # whether the coming step verifies nothing

    def observe_arrival(self) -> None:
        """Note that a request has come, whether or not it may speculate."""
        self._planner.observe_arrival(self._clock())

    # The life of a session.

    def open(self, session: Session) -> None:
        """Announce a request, so that its draft's prefill overlaps the target's."""
        self._note_losses()  # or a departure of before would be taken for one after
        self._sessions[session.session_id] = session
        self._taking.introduce(session)
        length = len(session.token_ids)
        last_token_id = session.token_ids[length - 1 :][0]
        self._buffer.open(session.session_id, session.router, length, last_token_id)
        self._find_router(session)
        is_wanted = self._has_drafts and not self._planner.is_off
        if is_wanted and self._offers.may_speculate(session):
            self._telling.announce(session, length)
        self.flush()

    def close(self, session_id: int) -> Session | None:
        """Forget a request that has finished or was aborted; returns what was known of it."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return None
        self._counters.count_overdue(session)
        self._buffer.close(session_id)
        self._stop_gap.close(session)
        self.engine.close(session_id)
        self._telling.close(session)
        return session

    def flush(self) -> None:
        """Send what has gathered, one frame per router."""
        self._telling.flush()

    # While a step computes.

    def learn(self) -> None:
        """Learn from the steps before, and from this one's proposals.

        The wait for the device is the time for it.
        """
        self._use.learn()
        if self._planner.is_learning_due:
            self._planner.learn()

    # Before a step.

    def expect(self, surroundings: Surroundings) -> None:
        """What else the coming step holds."""
        self._planner.expect(surroundings, self._clock())

    def propose(
        self, decoding: Sequence[int], num_others: int, *, may_wait: bool
    ) -> dict[int, Proposal]:
        """The proposals that the coming step verifies, cut to the depths that pay.

        May block while proposals are due that are worth waiting for.

        Args:
            decoding: Sessions whose next step is a decode step.
            num_others: Further requests in that step.
            may_wait: Whether the step may be held back at all.
        """
        wait = self.begin_wait(decoding, num_others, may_wait=may_wait)
        if wait is not None:
            self._buffer.wait_for(wait.session_ids, wait.deadline)
            self.end_wait(wait)
        return self.choose(decoding, num_others)

    def begin_wait(
        self, decoding: Sequence[int], num_others: int, *, may_wait: bool
    ) -> Wait | None:
        """Until when to hold the step back, for which proposals; None if for none.

        Nothing is waited for in a plain turn, which this decides.
        """
        self._note_losses()
        self._num_awaited, self._waited_s = 0, 0.0
        sessions = [self._sessions[i] for i in decoding if i in self._sessions]
        self._is_plain_turn = self._planner.take_plain_turn(len(sessions) + num_others)
        if self._is_plain_turn:
            return None
        for session in sessions:
            self._counters.count_lookup(session)
        wait = self._waiting.begin(sessions, self._max_wait_s()) if may_wait else None
        self._num_awaited = len(wait.awaited) if wait is not None else 0
        return wait

    def end_wait(self, wait: Wait) -> None:
        """Learn from a wait that is over: all its proposals are here, or its time is up."""
        self._waited_s = self._waiting.end(wait)
        self._counters.stats.wait_time.observe(self._waited_s)

    def choose(self, decoding: Sequence[int], num_others: int) -> dict[int, Proposal]:
        """The proposals that the coming step verifies, of those that are here."""
        self._note_losses()
        if self._is_plain_turn:
            self._stop_gap.skip_step()
            return {}  # what is here stays, for its rest
        sessions = [self._sessions[i] for i in decoding if i in self._sessions]
        due = {session.session_id for session in sessions if session.is_due}
        ready = self._taking.take(sessions)
        came = due & self._taking.answered
        self._note_due(len(due), len(came))
        if not ready:
            self._stop_gap.end_step((), 0.0)
            return {}
        offers = [self._offers.of_proposal(*taken) for taken in ready]
        num_plain = num_others + len(sessions) - len(ready)
        plan = self._planner.plan(offers, num_plain)
        depths = plan.depths
        shares = [
            Share(taken.session, offer, depth, taken.session.session_id in came and taken.is_answer)
            for taken, offer, depth in zip(ready, offers, depths, strict=True)
        ]
        self._use.note(shares, num_plain)
        depths = self._with_trials(offers, depths)
        chosen, gaps = {}, []
        for taken, depth, offer in zip(ready, depths, offers, strict=True):
            if depth > 0:
                session_id = taken.session.session_id
                taken.session.verifying = offer
                chosen[session_id] = self._offers.cut(*taken, depth)
                self._counters.stats.num_proposals_used += taken.is_answer
                if taken.proposal.source in STOP_GAPS or depth > offer.max_depth:
                    gaps.append(session_id)
        self._stop_gap.end_step(gaps, plan.saved_s - self._planner.overhead.extra_s)
        return chosen

    def _with_trials(self, offers: Sequence[Offer], depths: tuple[int, ...]) -> tuple[int, ...]:
        """The depths, and at least some tokens of whatever is to be tried."""
        if self.engine.is_trying:
            depths = self._planner.with_probes(offers, depths, frozenset(("engine",)))
        if self._planner.is_probing:
            depths = self._planner.with_probes(offers, depths)
        return depths

    def begin_step(self, session_ids: Collection[int], behind: Collection[int]) -> int:
        """See `EngineDrafts.begin_step`."""
        sessions = [self._sessions[i] for i in session_ids if i in self._sessions]
        return self.engine.begin_step(sessions, behind)

    # After a step.

    def observe_verification(
        self, session_id: int, source: Source, num_proposed: int, num_accepted: int
    ) -> None:
        """Note what a verification accepted, before the session grows by it."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        for piece in verified_pieces(session, source, num_proposed, num_accepted):
            self._counters.count_verification(piece)
            if piece.is_reached:
                self._planner.observe_verification(piece.offer, piece.accepted.num_tokens)
            if piece.accepted.num_tokens > 0:
                session.accepted.append(piece.accepted)
        if source == "engine":
            self.engine.observe_verification()

    def observe_turnaround(
        self, seconds: float, num_requests: int, sources: Collection[Source]
    ) -> None:
        """Learn from the time between a step and one that only decodes.

        Args:
            seconds: From a verification's end to the start of the next.
            num_requests: That the next holds.
            sources: Of what it verifies.
        """
        if self._num_awaited == 0 and not OWN_SOURCES.issuperset(sources):
            self._counters.stats.turnaround_time.observe(seconds)  # on a hit
        self._planner.observe_turnaround(
            seconds - self._waited_s, num_requests, is_speculative=bool(sources)
        )

    def observe_step(
        self,
        load: StepLoad,
        num_grown: int,
        num_committed: int,
        step_s: float,
        *,
        drafting_s: float = 0.0,
    ) -> None:
        """Note a finished step.

        Args:
            load: What it held.
            num_grown: Requests that got a token.
            num_committed: Tokens that they got.
            step_s: How long it took.
            drafting_s: How much of its time vLLM's own drafter took.
        """
        stats = self._counters.stats
        stats.num_steps += 1
        stats.num_request_steps += num_grown
        stats.num_committed += num_committed
        if load.is_decode_only:
            stats.step_time.observe(step_s)
        self.engine.observe_step(load.num_requests, drafting_s, is_decode_only=load.is_decode_only)
        self._planner.observe_step(load, step_s - drafting_s, is_drafting=self._is_drafting)

    def commit(
        self,
        lengths_before: Mapping[int, int],
        num_others: int,
        *,
        may_draft: bool = True,
        may_wait: bool = True,
    ) -> None:
        """Tell the drafts what was added, and how deep the next proposals should be.

        A draft that is left alone at depth 0 gets all it has missed in one commit later.

        Args:
            lengths_before: Session -> its tokens before the step, for those that got any.
            num_others: Further requests that decode.
            may_draft: Whether the next step may verify anything.
            may_wait: Whether it may be held back, as far as that is known.
        """
        self._note_losses()
        self._planner.follow(self._streams.policy.depth_rule)
        sessions = [self._sessions[i] for i in lengths_before if i in self._sessions]
        self.engine.plan(sessions, num_others, self._streams.policy, may_draft=may_draft)
        may_ask = may_draft and self._has_drafts
        offers = [self._offers.of_tokens(s, s.max_depth if may_ask else 0) for s in sessions]
        self._patience.face(len(sessions) + num_others)
        depths = self._planner.wanted_depths(
            offers,
            num_others,
            partial(self._patience.expected_wait_s, self._max_wait_s()),
            full_wait_s=partial(self._patience.full_wait_s, self._max_wait_s()),
            waited_s=self._waited_s,
            chance=self._patience.chance,
            is_beside=self._patience.is_beside,
        )
        self._patience.ask(sum(map(bool, depths)))
        self._is_drafting = any(depths)
        if self._planner.is_probing:
            is_alone = self._planner.is_off and all(depths) and not num_others
            self._patience.give_a_chance(self._max_wait_s(), is_alone=is_alone)
        told = []
        for i, (session, depth) in enumerate(zip(sessions, depths, strict=True)):
            length_before = lengths_before[session.session_id]
            session.is_resumed = session.wanted_depth == 0 < depth and session.committed_at > 0
            session.wanted_depth = depth
            self._advance(session, length_before)
            self._find_router(session)
            is_told = depth > 0 or i in self._planner.near
            if is_told and self._telling.begin_commit(session, length_before):
                told.append(session)
        self._choose_awaited(sessions, num_others, may_wait=may_wait)
        for session in told:
            # Nobody waits for one that is silent, but its router goes by what it owes.
            is_awaited = session.is_awaited or self._patience.is_in_doubt(session)
            self._telling.commit(session, is_awaited=is_awaited)
        self.flush()

    def note_drafted(self, drafted: Mapping[int, Sequence[int]]) -> None:
        """What vLLM's own drafter has drafted for sessions behind the step that has ended."""
        for session_id, token_ids in drafted.items():
            session = self._sessions.get(session_id)
            if session is not None:
                self.engine.note(session, token_ids)

    def _choose_awaited(
        self, sessions: Sequence[Session], num_others: int, *, may_wait: bool
    ) -> None:
        """Decide which proposals the coming step is to be held back for; their drafts are told.

        A draft that works ahead then answers just these. Left to find out by itself whether answers
        are in time, it may stop them for a target that would wait, and the other way round.
        """
        missing = self._waiting.missing(sessions)
        for session in missing:
            session.num_unheard += 1
        if missing and may_wait:
            known = {
                session.session_id for session in missing if self._taking.knows_as_much(session)
            }
            self._waiting.choose(
                sessions, missing, self._taking.own_offer, known, num_others, self._max_wait_s()
            )

    def stats(self) -> TargetStats:
        """A snapshot of the counters; called on the stream server's thread."""
        return self._counters.snapshot(self._planner, len(self._sessions))

    def _find_router(self, session: Session) -> None:
        """One that is there, for a session that may have any and has none."""
        is_without = session.is_any_routers and not session.is_announced
        if is_without and not self._streams.is_connected(session.router):
            session.router = self._streams.choose_router()
            self._buffer.move(session.session_id, session.router)

    def _advance(self, session: Session, length_before: int) -> None:
        added = tuple(session.token_ids[length_before:])
        self._buffer.advance(session.session_id, added)
        session.is_due = session.is_awaited = False

    def _note_due(self, num_due: int, num_there: int) -> None:
        """Learn how many of the proposals that were asked for are there."""
        num_gone, self._num_due_and_lost = self._num_due_and_lost, 0
        self._patience.observe_step(
            num_due + num_gone,
            num_due - num_there + num_gone,
            self._num_awaited,
            is_trial=self._planner.is_probing,
        )

    def _max_wait_s(self) -> float:
        return self._streams.policy.max_wait_ms / 1e3

    def _note_losses(self) -> None:
        for session_id in set(self._streams.take_lost()) & self._sessions.keys():
            session = self._sessions[session_id]
            self._num_due_and_lost += session.is_due
            self._telling.note_loss(session)
        for router in set(self._streams.take_departed()):
            self._patience.forget(router)  # it may never come back; if it does, with a new draft
            carried = [s for s in self._sessions.values() if s.router == router]
            self._telling.retract(router, carried)
