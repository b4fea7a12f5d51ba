"""A draft replica: a queue of sessions that want proposals, drafted for in batches."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simpy

from specray.control.acceptance import source_acceptance
from specray.control.batch_cost import BatchCost
from specray.control.roofline import StepLoad
from specray.draft.engine import EngineStats
from specray.draft.pace import Rhythm, answer_depth
from specray.draft.sizes import GPU_PREFILL_TOKENS
from specray.simulate.requests import RIGHT_TOKEN, WRONG_TOKEN, Request
from specray.simulate.step_laws import StepLaw
from specray.types import Commit, OpenSession, Proposal, ProposalFrame, SessionFrame, Source

Process = Generator[simpy.Event, Any, None]
_NO_PRIOR = 0.0  # what is known to begin with is enough
_NS = 1e9


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """How a draft works, and what its steps cost."""

    law: StepLaw
    source: Source = "model"
    prefill_overhead_s: float = 0.0  # of each piece of a prompt, beside its step
    ahead_hit_rate: float = 0.0  # commits whose continuation had been drafted ahead; 0: never does
    # Outcomes drafted for ahead, per session: so many times the tokens a step. Assumed; how many of
    # `draft.model.fan_out` there is time for depends on the draft.
    fan_out: int = 3

    @property
    def copies(self) -> bool:
        """Whether it looks up its proposals: at once, together with all outcomes'."""
        return self.source == "prompt_lookup"


class Work(NamedTuple):
    """A piece of work without a break."""

    began_s: float
    seconds: float

    def seconds_within(self, from_s: float, until_s: float) -> float:
        """How much of it falls into a time."""
        return max(0.0, min(self.began_s + self.seconds, until_s) - max(self.began_s, from_s))


class QueueWait(NamedTuple):
    """Of a commit."""

    ended_s: float  # when its proposal was begun
    seconds: float


@dataclass(slots=True)
class _Session:
    relay_id: int
    request: Request
    length: int  # prompt and answer, as far as committed
    num_to_prefill: int
    commit: Commit | None = None  # the latest, if it asks for a proposal that has not left
    last_depth: int = 0
    ahead_of: int | None = None  # a proposal behind so many tokens has left; what follows may come
    num_ahead: int = 0  # tokens of each continuation that have been drafted
    began_s: float | None = None  # when what is verified now left, or was found to have
    was_ahead: bool = False  # whether that had been drafted ahead
    sent_ahead: int = 0  # continuations for lengths up to this one have left

    def wants(self) -> bool:
        return self.commit is not None and self.num_to_prefill == 0


class Draft:
    """One replica. Rounds: those that wait for a proposal first, then prefills, then ahead."""

    def __init__(
        self,
        env: simpy.Environment,
        name: str,
        settings: DraftSettings,
        requests: Mapping[int, Request],
        send: Callable[[str, ProposalFrame], None],
        seed: int,
    ) -> None:
        self.work: list[Work] = []
        self.num_drafted = 0  # tokens, without those drafted ahead
        self.waits: list[QueueWait] = []
        self.stats = EngineStats()  # what a service's draft would count, as far as it is reported
        self._cost = BatchCost()
        self._env = env
        self._name = name
        self._settings = settings
        self._requests = requests
        self._send = send
        self._seed = seed
        self._sessions: dict[int, _Session] = {}
        self._rhythm = Rhythm()
        self._acceptance = source_acceptance()
        self._work = env.event()
        env.process(self._run())

    @property
    def _works_ahead(self) -> bool:
        """In passes of its own; copies for all outcomes leave with each answer."""
        return self._settings.ahead_hit_rate > 0 and not self._settings.copies

    def stop(self) -> None:
        """It is taken away, with all that it was asked for."""
        self._sessions.clear()

    def take(self, frame: SessionFrame) -> None:
        """A frame has arrived."""
        for opened in frame.opens:
            self._open(opened)
        for commit in frame.commits:
            self._commit(commit)
        for relay_id in frame.closes:
            self._sessions.pop(relay_id, None)
        if not self._work.triggered:
            self._work.succeed()

    def _open(self, opened: OpenSession) -> None:
        request = self._requests[opened.token_ids[0]]
        length = len(opened.token_ids)
        to_prefill = 0 if self._settings.copies else length
        self._sessions[opened.session_id] = _Session(opened.session_id, request, length, to_prefill)

    def _commit(self, commit: Commit) -> None:
        session = self._sessions.get(commit.session_id)
        if session is None:
            return
        self._observe_flight(session, commit)
        session.length = commit.position + len(commit.token_ids)
        is_answered = session.length <= session.sent_ahead and self._hits(session, session.length)
        is_unawaited = self._works_ahead and commit.is_unawaited  # what it brings next is of use
        is_running = commit.depth > 0 and (is_answered or is_unawaited)
        session.commit = None if is_running or commit.depth == 0 else commit
        session.ahead_of = session.length if is_running else None
        session.began_s = self._env.now if is_running else None
        session.was_ahead = is_answered
        session.last_depth, session.num_ahead = commit.depth, 0

    def _observe_flight(self, session: _Session, commit: Commit) -> None:
        """Learns what the service's draft does, to tell how deep an answer is worth it."""
        if session.began_s is None:
            return
        seconds = self._env.now - session.began_s
        self._rhythm.observe_flight(seconds, len(commit.token_ids), was_ahead=session.was_ahead)
        # The first token shows it, whether or not the proposal came in time.
        self._acceptance.observe(1, session.request.num_right(session.length, 1))

    def _run(self) -> Process:
        while True:
            wanting = [s for s in self._sessions.values() if s.wants()]
            ahead = [s for s in self._sessions.values() if self._may_go_ahead(s)]
            prefilling = next((s for s in self._sessions.values() if s.num_to_prefill), None)
            if wanting:
                yield from self._answer(wanting)
            elif not prefilling and ahead:
                yield from self._draft_ahead(ahead)
            if prefilling:
                yield from self._prefill(prefilling)
            if not (wanting or prefilling or ahead):
                self._work = self._env.event()
                yield self._work

    def _answer(self, sessions: list[_Session]) -> Process:
        asked = [(s, s.commit) for s in sessions if s.commit is not None]
        for _, commit in asked:
            waited_s = self._env.now - commit.sent_at_ns / _NS
            self.waits.append(QueueWait(self._env.now, waited_s))
        most = self._answer_depth([session for session, _ in asked])
        depths = [s.request.num_proposed(s.length, min(most, c.depth)) for s, c in asked]
        lengths = [s.length for s, _ in asked]
        seconds = self._rollout_s(depths, lengths)
        self._note_batch(len(asked), seconds, sum(depths))
        yield from self._work_for(seconds)
        self.num_drafted += sum(depths)
        proposals = []
        for session, commit in asked:
            depth = min(most, commit.depth)
            proposals.append(self._proposal(session, _end(commit), depth, commit))
            if session.commit is commit:
                session.commit, session.ahead_of = None, session.length
                session.began_s, session.was_ahead = self._env.now, False
        self._send(self._name, ProposalFrame(tuple(proposals)))
        if self._settings.copies:
            self._push_ahead([session for session, _ in asked])

    def _answer_depth(self, sessions: Sequence[_Session]) -> int:
        """How many tokens are worth it in answers, as the service's draft decides."""
        most = max(session.last_depth for session in sessions)
        if not self._works_ahead:
            return most
        in_steps = [s for s in self._sessions.values() if s.began_s is not None]
        rhythms = [self._rhythm] * (len(sessions) + len(in_steps))
        pass_s = self._rollout_s([1] * len(sessions), [s.length for s in sessions])
        rate = self._acceptance.rate(_NO_PRIOR)
        return answer_depth(most, [rate] * len(sessions), rhythms, pass_s)

    def _note_batch(self, num_answers: int, seconds: float, num_tokens: int) -> None:
        self._cost.observe(num_answers, seconds)
        stats = self.stats
        stats.num_proposals += num_answers
        stats.num_proposed += num_tokens
        stats.answer_fixed_s, stats.answer_each_s = self._cost.fixed_s, self._cost.per_item_s

    def _may_go_ahead(self, session: _Session) -> bool:
        """Whether a pass for it would end before its next commit: that would have to wait else."""
        if self._settings.copies:
            return session.ahead_of is not None
        if session.ahead_of is None or session.began_s is None or not self._works_ahead:
            return False
        num_rows = self._settings.fan_out
        pass_s = self._settings.law.step_s(StepLoad(num_rows, num_rows, session.length))
        elapsed_s = self._env.now - session.began_s
        return self._rhythm.left_s(elapsed_s, was_ahead=session.was_ahead) >= pass_s

    def _draft_ahead(self, sessions: list[_Session]) -> Process:
        """One pass: a token more of each continuation, which leaves as far as it goes."""
        assumed = [(s, s.ahead_of) for s in sessions]
        num_rows = len(sessions) * self._settings.fan_out
        kv = sum(session.length + session.num_ahead for session in sessions)
        seconds = self._settings.law.step_s(StepLoad(num_rows, num_rows, kv))
        self.stats.ahead_s += seconds
        yield from self._work_for(seconds)
        self._rhythm.observe_pass()
        drafted = [session for session, length in assumed if session.ahead_of == length]
        for session in drafted:
            session.num_ahead += 1
        self._push_ahead(drafted)
        for session in drafted:
            if self._settings.copies or session.num_ahead >= session.last_depth:
                session.ahead_of = None

    def _push_ahead(self, sessions: list[_Session]) -> None:
        """Send what follows each number of accepted tokens, where the outcome was foreseen."""
        proposals = []
        for session in sessions:
            length = session.length
            depth = session.last_depth if self._settings.copies else session.num_ahead
            most = length + session.request.num_right(length, session.last_depth) + 1
            proposals += [
                self._proposal(session, end, depth, None)
                for end in range(length + 1, most + 1)
                if self._hits(session, end)
            ]
            session.sent_ahead = most
        if proposals:
            self._send(self._name, ProposalFrame(tuple(proposals)))

    def _proposal(
        self, session: _Session, length: int, depth: int, commit: Commit | None
    ) -> Proposal:
        num_proposed = session.request.num_proposed(length, depth)
        num_right = min(num_proposed, session.request.num_right(length, depth))
        return Proposal(
            session.relay_id,
            length,
            RIGHT_TOKEN,
            (RIGHT_TOKEN,) * num_right + (WRONG_TOKEN,) * (num_proposed - num_right),
            self._settings.source,
            commit_sent_at_ns=commit.sent_at_ns if commit else 0,
            covers_outcomes=self._settings.copies,
        )

    def _hits(self, session: _Session, length: int) -> bool:
        """Whether the commit that ends there is one whose continuation was drafted ahead."""
        rate = self._settings.ahead_hit_rate
        if rate in (0.0, 1.0):
            return rate == 1.0
        luck = np.random.default_rng([self._seed, 3, session.request.number, length]).random()
        return bool(luck < rate)

    def _rollout_s(self, depths: list[int], lengths: list[int]) -> float:
        """Token by token, for those that still want one."""
        if self._settings.copies:
            return self._settings.law.step_s(StepLoad(len(depths), len(depths), 0))
        seconds = 0.0
        for place in range(max(depths, default=0)):
            active = [
                length for depth, length in zip(depths, lengths, strict=True) if depth > place
            ]
            kv = sum(active) + len(active) * place
            seconds += self._settings.law.step_s(StepLoad(len(active), len(active), kv))
        return seconds

    def _prefill(self, session: _Session) -> Process:
        piece = min(GPU_PREFILL_TOKENS, session.num_to_prefill)
        done = session.length - session.num_to_prefill
        step_s = self._settings.law.step_s(StepLoad(1, piece, max(0, done) + piece))
        yield from self._work_for(step_s + self._settings.prefill_overhead_s)
        session.num_to_prefill = max(0, session.num_to_prefill - piece)

    def _work_for(self, seconds: float) -> Process:
        self.work.append(Work(self._env.now, seconds))
        self.stats.busy_s += seconds
        yield self._env.timeout(seconds)


def _end(commit: Commit) -> int:
    return commit.position + len(commit.token_ids)
