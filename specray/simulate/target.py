"""A target replica: vLLM's continuous batching around the service's own `Speculation`."""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import simpy

from specray.config import MAX_DEPTH
from specray.control.planner import Planner, Surroundings
from specray.control.roofline import Roofline, StepLoad
from specray.simulate.network import ROUTER, Network, TargetStreams
from specray.simulate.requests import WRONG_TOKEN, Request
from specray.simulate.step_laws import StepLaw
from specray.target.buffer import ProposalBuffer
from specray.target.load import LoadMeter, Queues
from specray.target.session import Session
from specray.target.speculation import Speculation
from specray.target.waiting import Wait
from specray.types import Proposal, ProposalFrame, SamplingSettings, SpeculationPolicy
from specray.wire.stats import TargetStats

Process = Generator[simpy.Event, Any, None]
_VOCABULARY = 2  # right and wrong
_WAKE_UP_S = 20e-6  # that a thread sleeps beyond its deadline: what comes exactly then is seen


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """A replica's engine: what a step costs, and vLLM's limits on it."""

    law: StepLaw
    policy: SpeculationPolicy
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    num_kv_tokens: int = 1 << 40  # room for so many tokens' keys and values
    prior: Roofline | None = None  # what its planner believes of steps before it has seen any
    verify_overhead_s: float = 0.0  # of the host, before a step that verifies draft tokens

    @property
    def speculates(self) -> bool:
        """Whether requests have sessions at all."""
        return self.policy.is_enabled and self.policy.max_depth > 0


class Step(NamedTuple):
    """What a finished step did."""

    ended_s: float
    seconds: float
    waited_s: float
    num_requests: int  # that decoded
    num_prefill_tokens: int
    num_proposed: int
    num_accepted: int
    num_committed: int  # tokens of answers, those of finished prefills too


class Target:
    """One replica.

    A request is admitted when its whole length finds room, so that nothing is ever preempted;
    running requests come before prefills, and prefills are cut to the step's budget of tokens.
    """

    def __init__(
        self, env: simpy.Environment, name: str, settings: TargetSettings, network: Network
    ) -> None:
        self.steps: list[Step] = []
        self._env = env
        self._settings = settings
        clock = lambda: float(env.now)  # noqa: E731 - too small for a name of its own
        self._buffer = ProposalBuffer(_VOCABULARY, max(1, settings.policy.max_depth), clock)
        self._network = network
        # All tokens of a simulated answer are the same: a copy of its text would always be right.
        # And records hold what drafts would propose, not what a target would copy.
        policy = replace(settings.policy, has_stop_gap=False)
        self._streams = TargetStreams(network, name, policy)
        planner = Planner(settings.policy.depth_rule, roofline=settings.prior)
        self._speculation = Speculation(self._buffer, self._streams, clock, planner)
        self._meter = LoadMeter(self._speculation.stats, self._queues, clock)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._finished: dict[int, simpy.Event] = {}
        self._work = env.event()
        self._heard = env.event()  # proposals have arrived
        self._verified_at: float | None = None  # when the latest step's tokens were known
        network.add_target(name, self._take)
        env.process(self._run())

    @property
    def num_ongoing(self) -> int:
        """Requests that it has."""
        return len(self._waiting) + len(self._running)

    def add(self, request: Request) -> simpy.Event:
        """Queue a request, and announce it to the drafts.

        Returns:
            What happens when it has finished.
        """
        self._waiting.append(request)
        self._meter.observe_arrival(str(request.number))
        finished = self._finished[request.number] = self._env.event()
        self._speculation.observe_arrival()
        if self._settings.speculates:
            self._speculation.open(
                Session(
                    request.number,
                    ROUTER,
                    request.tokens,
                    request.num_prompt,
                    request.num_prompt + request.num_answer,
                    MAX_DEPTH,
                    SamplingSettings(),
                    uses_distributions=False,
                )
            )
        if not self._work.triggered:
            self._work.succeed()
        return finished

    @property
    def max_wait_s(self) -> float:
        """Longest that a step waits for proposals."""
        return self._settings.policy.max_wait_ms / 1e3

    def stats(self) -> TargetStats:
        """What a service's target would count."""
        stats = self._meter.stats()
        stats.relay_time.observe(self._network.round_trip_s)
        return stats

    def _queues(self) -> Queues:
        num_kv = sum(map(_most_tokens, self._running))
        usage = num_kv / self._settings.num_kv_tokens
        return Queues(len(self._running), len(self._waiting), self._settings.max_num_seqs, usage)

    def _take(self, frame: ProposalFrame) -> None:
        for proposal in frame.proposals:
            self._buffer.offer(proposal, ROUTER)
        self._streams.lose(frame.lost)
        if not self._heard.triggered:
            self._heard.succeed()

    def _run(self) -> Process:
        while True:
            if not self.num_ongoing:
                self._work = self._env.event()
                yield self._work
            self._admit()
            yield from self._step()

    def _admit(self) -> None:
        room = self._settings.num_kv_tokens - sum(map(_most_tokens, self._running))
        while self._waiting and len(self._running) < self._settings.max_num_seqs:
            room -= _most_tokens(self._waiting[0])
            if room < 0 and self._running:
                return
            self._running.append(self._waiting.popleft())

    def _step(self) -> Process:
        decoding = [request for request in self._running if request.is_prefilled]
        prefilling = [request for request in self._running if not request.is_prefilled]
        began_s = self._env.now
        proposals: dict[int, Proposal] = {}
        if self._settings.speculates:
            self._speculation.expect(self._surroundings())
            # A new request's first token is not held back.
            yield from self._hold_back(decoding, may_wait=not prefilling)
            proposals = self._speculation.choose([request.number for request in decoding], 0)
        waited_s = self._env.now - began_s
        if proposals:
            yield self._env.timeout(self._settings.verify_overhead_s)
        started_s = self._env.now
        depths = {number: len(proposal.token_ids) for number, proposal in proposals.items()}
        num_decode = len(decoding) + sum(depths.values())
        pieces = self._pieces(prefilling, num_decode)
        num_prefill = sum(pieces.values())
        ran = [*decoding, *(request for request in prefilling if request.number in pieces)]
        num_kv = sum(map(_num_computed, ran)) + num_decode + num_prefill
        load = StepLoad(len(ran), num_decode + num_prefill, num_kv, 0, num_prefill)
        planned = _Planned(ran, pieces, proposals, load, waited_s, started_s)
        self._observe_turnaround(planned)
        self._speculation.learn()
        yield self._env.timeout(self._settings.law.step_s(load))
        self._finish(planned)

    def _surroundings(self) -> Surroundings:
        """What the service's scheduler tells its planner of the next step."""
        running = self._running
        prefilling = [request for request in running if not request.is_prefilled]
        room = max(0, self._settings.max_num_batched_tokens - len(running))
        num_prefill = sum(request.num_prompt - request.num_prefilled for request in prefilling)
        num_prefill = min(num_prefill, room)
        num_kv = sum(map(_num_computed, running))
        return Surroundings(num_kv, len(prefilling), num_prefill, room - num_prefill)

    def _hold_back(self, decoding: Sequence[Request], *, may_wait: bool) -> Process:
        """Wait for proposals as the service does."""
        numbers = [request.number for request in decoding]
        wait = self._speculation.begin_wait(numbers, 0, may_wait=may_wait)
        if wait is None:
            return
        deadline = self._env.timeout(wait.deadline - self._env.now + _WAKE_UP_S)
        while not deadline.processed and not self._is_settled(wait):
            self._heard = self._env.event()
            yield self._heard | deadline
        self._speculation.end_wait(wait)

    def _is_settled(self, wait: Wait) -> bool:
        return all(self._buffer.is_settled(number) for number in wait.session_ids)

    def _pieces(self, prefilling: Sequence[Request], num_decode: int) -> dict[int, int]:
        """How many prompt tokens of each request the step computes, first come first served."""
        left = self._settings.max_num_batched_tokens - num_decode
        pieces = {}
        for request in prefilling:
            piece = min(left, request.num_prompt - request.num_prefilled)
            if piece > 0:
                pieces[request.number] = piece
                left -= piece
        return pieces

    def _observe_turnaround(self, planned: "_Planned") -> None:
        """Time what lies between a step and one that only decodes, as the service's scheduler."""
        verified_at, self._verified_at = self._verified_at, None
        if verified_at is not None and not planned.pieces:
            sources = {proposal.source for proposal in planned.proposals.values()}
            self._speculation.observe_turnaround(
                planned.started_s - verified_at, len(planned.ran), sources
            )

    def _finish(self, planned: "_Planned") -> None:
        """Book a step in the order of the service's scheduler."""
        self._verified_at = self._env.now
        lengths = {request.number: request.num_tokens for request in planned.ran}
        num_proposed = num_accepted = 0
        for request in planned.ran:
            request.num_prefilled += planned.pieces.get(request.number, 0)
            if not request.is_prefilled:
                continue
            accepted = 0
            if proposal := planned.proposals.get(request.number):
                depth, accepted = len(proposal.token_ids), _num_accepted(proposal)
                self._speculation.observe_verification(
                    request.number, proposal.source, depth, accepted
                )
                num_proposed, num_accepted = num_proposed + depth, num_accepted + accepted
            request.num_answered = min(request.num_answer, request.num_answered + accepted + 1)
        grown = [request for request in planned.ran if request.num_tokens > lengths[request.number]]
        self._note_times(grown)
        num_committed = sum(request.num_tokens - lengths[request.number] for request in grown)
        seconds = self._env.now - planned.started_s
        self._meter.observe_step([str(request.number) for request in grown], num_committed, seconds)
        self._running = [request for request in self._running if not request.is_finished]
        self._admit()  # for the next step, on which the commits depend
        if self._settings.speculates:
            self._speculate_on(planned, grown, lengths, num_committed, seconds)
        self.steps.append(
            Step(
                self._env.now,
                seconds,
                planned.waited_s,
                len(planned.ran) - len(planned.pieces),
                sum(planned.pieces.values()),
                num_proposed,
                num_accepted,
                num_committed,
            )
        )

    def _speculate_on(
        self,
        planned: "_Planned",
        grown: Sequence[Request],
        lengths: Mapping[int, int],
        num_committed: int,
        seconds: float,
    ) -> None:
        for request in grown:
            if request.is_finished:
                self._speculation.close(request.number)
        self._speculation.observe_step(planned.load, len(grown), num_committed, seconds)
        self._speculation.expect(self._surroundings())
        growing = [request.number for request in grown if not request.is_finished]
        may_wait = all(request.is_prefilled for request in self._running)
        self._speculation.commit(
            {number: lengths[number] for number in growing}, 0, may_wait=may_wait
        )

    def _note_times(self, grown: Sequence[Request]) -> None:
        for request in grown:
            if request.first_token_s is None:
                request.first_token_s = self._env.now
            if request.is_finished:
                request.finished_s = self._env.now
                self._finished.pop(request.number).succeed()


class _Planned(NamedTuple):
    """A step that is running."""

    ran: Sequence[Request]
    pieces: Mapping[int, int]  # of prompts, by request
    proposals: Mapping[int, Proposal]
    load: StepLoad
    waited_s: float  # for proposals
    started_s: float


def _num_accepted(proposal: Proposal) -> int:
    tokens = proposal.token_ids
    return tokens.index(WRONG_TOKEN) if WRONG_TOKEN in tokens else len(tokens)


def _most_tokens(request: Request) -> int:
    return request.num_prompt + request.num_answer


def _num_computed(request: Request) -> int:
    """Tokens whose keys and values a step of the request reads."""
    return request.num_tokens if request.is_prefilled else request.num_prefilled
