"""vLLM's scheduler with proposals from outside.

vLLM's own scheduler does all the scheduling. Around each call of it, proposals are put into the
running requests before, and commits are sent to the drafts after. Made for vLLM 0.29's V1 model
runner with synchronous scheduling.
"""

import itertools
import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from specray.config import EngineCoreConfig, TargetPluginConfig
from specray.control.hardware import HardwareProfile
from specray.control.planner import Planner
from specray.control.roofline import StepLoad
from specray.control.step_time_file import StepTimeFile
from specray.errors import StartupError
from specray.observability import logs
from specray.observability.journal import Journal, open_journal
from specray.target import grammar, hardware, rendezvous, requests, step, threads
from specray.target.buffer import ProposalBuffer
from specray.target.direct import DirectPath
from specray.target.drafter_context import DrafterContext
from specray.target.engine_drafter import DRAFTING_S, find_drafter
from specray.target.engine_drafts import NO_DRAFTER
from specray.target.load import LoadMeter, Queues
from specray.target.names import HARDWARE_KEY
from specray.target.orphan import end_with_parent
from specray.target.service import Direct, RouterStreams
from specray.target.speculation import Speculation
from specray.target.stop_gap import make_stop_gap
from specray.target.worker import DISTRIBUTIONS, HARDWARE
from specray.types import Proposal
from specray.wire.server import serve_target
from specray.wire.timeline import open_timeline

_SWITCH_INTERVAL_S = 0.0005


class _Step(NamedTuple):
    """What has to be remembered from `schedule` to `update_from_output`."""

    started: float
    proposals: dict[str, Proposal]  # by vLLM's request id
    load: StepLoad


class SpeculativeScheduler(Scheduler):
    """Runs in vLLM's engine core; also owns the stream server that routers connect to."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        end_with_parent()
        if self.scheduler_config.async_scheduling or vllm_config.use_v2_model_runner:
            raise StartupError(
                "specray needs synchronous scheduling and vLLM's V1 model runner: set "
                "async_scheduling to false and VLLM_USE_V2_MODEL_RUNNER to 0"
            )
        if vllm_config.max_concurrent_batches > 1:
            raise StartupError(
                "specray runs one batch at a time: set pipeline_parallel_size to 1 and use "
                "tensor_parallel_size"
            )
        core = rendezvous.read()
        config = core.plugin
        self._trusts_distributions = config.trust_draft_distributions
        vocab_size = vllm_config.model_config.get_vocab_size()
        self._num_spec_tokens: int = vllm_config.num_speculative_tokens
        self._journal = _open_journal(core)
        buffer = ProposalBuffer(vocab_size, config.max_depth)
        self._timeline = open_timeline(config.observability.timeline, "target")
        self._streams = RouterStreams(
            buffer, config.policy, timeline=self._timeline, direct=_direct_path(config)
        )
        self._hardware: str = vllm_config.additional_config[HARDWARE_KEY]
        self._step_times = StepTimeFile(hardware.step_time_key(vllm_config, self._hardware))
        roofline = hardware.find_roofline(
            vllm_config, self._hardware, self._step_times.read_hardware()
        )
        self._planner = Planner(config.policy.depth_rule, roofline=roofline)
        self._step_times.load(self._planner.step_time)
        drafter = find_drafter(vllm_config.speculative_config, self.max_model_len)
        self._speculation = Speculation(
            buffer,
            self._streams,
            planner=self._planner,
            stop_gap=make_stop_gap(config),
            name=f"{socket.gethostname()}:{os.getpid()}",
            drafter=drafter,
            has_drafts=config.has_drafts,
            max_depth=self._num_spec_tokens,
        )
        self._has_drafter = drafter != NO_DRAFTER
        self._drafter_context = DrafterContext(
            self.block_size, self.kv_cache_manager.get_block_ids, is_kept=drafter.has_context
        )
        self._load_meter = LoadMeter(self._speculation.stats, self._queues)
        self._streams.report_stats_of(self._load_meter.stats)
        self._session_ids: dict[str, int] = {}
        self._num_allowed: dict[str, int] = {}  # tokens, of proposals that a grammar has cut
        self._draftless: set[str] = set()  # requests beside which none may speculate
        self._next_session_id = itertools.count(1)
        self._step = _Step(0.0, {}, StepLoad(0, 0, 0))
        self._verified_at: float | None = None  # when the latest step's tokens were known
        # Streams must not wait for the engine's thread: 5 ms by default, a good part of a step.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._is_queue_stuck = False  # for want of a place or of memory; it waits no longer by us
        self._is_settled = False  # vLLM starts its own threads after this constructor
        self._server = serve_target(self._streams, self._streams, core.listen_host)
        rendezvous.publish_address(self._server.address)

    def add_request(self, request: Request) -> None:
        """Queue a request, and announce it to its router if it may speculate."""
        is_more = request.request_id in self.requests  # of a request that streams its prompt
        super().add_request(request)
        if request.request_id not in self.requests:
            return  # the end of a prompt that streams in: the request is over
        if requests.forbids_drafts(request):
            self._draftless.add(request.request_id)
        if is_more:
            return
        self._load_meter.observe_arrival(request.request_id)
        self._speculation.observe_arrival()
        traceparent = self._begin_journal(request)
        session_id = next(self._next_session_id)
        session = requests.session(request, session_id, self.max_model_len)
        if session is not None:
            session.traceparent = traceparent
            session.uses_distributions &= self._trusts_distributions
            self._session_ids[request.request_id] = session_id
            names = {"request": session.request_id, "vllm_request": request.request_id}
            self._timeline.mark("request arrived", session=session_id, **names)
            self._speculation.open(session)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Plan a step that verifies what has been proposed."""
        if not self._is_settled:
            self._is_settled = True
            if current_platform.is_cpu():
                threads.clear_the_models_core(free={self._server.thread_id})
        proposals = self._inject()
        # vLLM pads requests that join a batch of decodes with draft ids of -1, which the CPU's
        # rejection kernel sometimes accepts; with 0 speculative tokens it does not.
        self.num_spec_tokens = 0
        output = super().schedule(throttle_prefills)
        self.num_spec_tokens = self._num_spec_tokens
        output.num_spec_tokens_to_schedule = self._begin_drafting(output)
        scheduled = output.scheduled_spec_decode_tokens
        verified = {r: p for r, p in proposals.items() if r in scheduled}
        distributions = {
            req_id: proposal.distributions.prefix(len(scheduled[req_id]))
            for req_id, proposal in verified.items()
            if proposal.distributions is not None
        }
        setattr(output, DISTRIBUTIONS, distributions)
        self._is_queue_stuck = bool(self.waiting) and not step.has_admitted(output)
        load = step.load(output, self.requests)
        self._step = _Step(time.monotonic(), verified, load)
        self._observe_turnaround()
        return output

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Learn from the steps before, too: vLLM asks for the bitmask while this one computes.

        That holds for GPUs and for workers in processes of their own. A CPU worker in the engine's
        process has finished its forward pass by then, so that learning counts as part of the step.
        """
        self._speculation.learn()
        self._step_times.note_step(self._planner.step_time)
        return super().get_grammar_bitmask(scheduler_output)

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Take what vLLM's own drafter has drafted, as far as grammars allow it."""
        if not self._has_drafter:
            return
        super().update_draft_token_ids(draft_token_ids)
        drafted = self._sessions_in(draft_token_ids.req_ids)
        self._speculation.note_drafted(
            {i: self.requests[r].spec_token_ids for i, r in drafted.items()}
        )

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Book a finished step and send its commits."""
        self._verified_at = time.monotonic()
        self._learn_hardware(model_runner_output)
        drafting_s = getattr(model_runner_output, DRAFTING_S, 0.0)
        if drafting_s:
            self._drafter_context.note_success()
        elif scheduler_output.num_spec_tokens_to_schedule:
            self._drafter_context.note_failure(scheduler_output)
            for request_id in scheduler_output.num_scheduled_tokens.keys() - self.requests.keys():
                self._drafter_context.forget(request_id)  # aborted meanwhile
        step_s = self._verified_at - self._step.started
        if self._timeline.is_on:
            facts = step.facts(scheduler_output, self._step.proposals, self._session_ids)
            self._timeline.span("verify", self._step.started, **facts)
        ran = [
            self.requests[r] for r in scheduler_output.num_scheduled_tokens if r in self.requests
        ]
        lengths = {request.request_id: request.num_tokens for request in ran}
        session_ids = {r: i for i, r in self._sessions_in(lengths).items()}
        self._observe_verifications(scheduler_output, model_runner_output)
        starting = self._note_step(ran)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        grown = [r for r in ran if r.num_tokens > lengths[r.request_id]]
        for request_id in starting.intersection(r.request_id for r in grown):
            self._journal.enter(request_id, "decode")
        num_committed = sum(r.num_tokens - lengths[r.request_id] for r in grown)
        self._load_meter.observe_step([r.request_id for r in grown], num_committed, step_s)
        self._speculation.observe_step(
            self._step.load, len(grown), num_committed, step_s, drafting_s=drafting_s
        )
        committed = {
            session_ids[r.request_id]: lengths[r.request_id]
            for r in grown
            if r.request_id in session_ids
        }
        others = len(grown) - len(committed)
        self._expect()
        self._speculation.commit(
            committed,
            others,
            may_draft=not self._draftless,
            may_wait=not self._has_prefill(),
        )
        return outputs

    def finish_requests(self, request_ids: Any, finished_status: RequestStatus) -> list[Request]:
        """Abort requests, and tell their drafts."""
        finished = super().finish_requests(request_ids, finished_status)
        self._speculation.flush()
        return finished

    def shutdown(self) -> None:
        """Close the streams, then what vLLM holds."""
        self._server.stop(0.0)
        self._journal.close()
        self._planner.learn()
        self._step_times.save(self._planner.step_time)
        super().shutdown()

    def _learn_hardware(self, output: ModelRunnerOutput) -> None:
        """Take what the worker measured, which it tells once, unless an earlier start did."""
        state = getattr(output, HARDWARE, None)
        if state is None or self._planner.hardware:
            return
        measured = HardwareProfile.from_state(state)
        roofline = hardware.find_roofline(self.vllm_config, self._hardware, measured)
        if roofline is not None:
            self._planner.learn_hardware(roofline)

    def _begin_journal(self, request: Request) -> str:
        """Begin its entry in the journal; returns the span that its draft's is part of."""
        names = requests.names(request)
        traceparent = self._journal.begin(request.request_id, *names)
        self._journal.add(request.request_id, prompt_tokens=request.num_prompt_tokens)
        self._journal.enter(request.request_id, "prefill")
        return traceparent

    def _note_step(self, ran: Sequence[Request]) -> set[str]:
        """Count the step for each request; returns those that have no token of their answer yet."""
        if not self._journal.is_on:
            return set()
        for request in ran:
            self._journal.add(request.request_id, steps=1)
        return {request.request_id for request in ran if request.num_output_tokens == 0}

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self._load_meter.forget(request.request_id)
        self._draftless.discard(request.request_id)
        self._drafter_context.forget(request.request_id)
        session_id = self._session_ids.pop(request.request_id, None)
        session = self._speculation.close(session_id) if session_id is not None else None
        if session is not None:
            counts = {"hits": session.num_hits, "late": session.num_late}
            self._journal.add(request.request_id, **counts, misses=session.num_absent)
        self._journal.add(request.request_id, output_tokens=request.num_output_tokens)
        self._journal.end(request.request_id, request.status.name.lower())
        return super()._free_request(request, delay_free_blocks)

    def _begin_drafting(self, output: SchedulerOutput) -> int:
        """How many tokens vLLM's own drafter is to draft behind a step."""
        if not self._has_drafter:
            return 0
        blank = self._drafter_context.admit(output)
        sessions = self._sessions_in(output.num_scheduled_tokens)
        behind = {i for i, r in sessions.items() if self._drafter_context.is_behind(r)}
        depth = self._speculation.begin_step(sessions, behind)
        if blank and self._speculation.engine.is_on:
            # The next request computes them anew, so that the drafter reads them.
            self.kv_cache_manager.evict_blocks(blank)
        self._drafter_context.note(output, is_drafting=depth > 0)
        return depth

    def _sessions_in(self, request_ids: Iterable[str]) -> dict[int, str]:
        """Session -> request, for those of these requests that may speculate."""
        return {i: r for r in request_ids if (i := self._session_ids.get(r)) is not None}

    def _queues(self) -> Queues:
        """For the stream server's thread: reads what the engine's may be changing."""
        num_waiting = len(self.waiting) + len(self.skipped_waiting)
        usage: float = self.kv_cache_manager.usage
        return Queues(len(self.running), num_waiting, self.max_num_running_reqs, usage)

    def _inject(self) -> dict[str, Proposal]:
        """Put proposals into the requests that are about to decode, and take out all others."""
        decoding = {}
        for request in self.running:
            request.spec_token_ids = []
            session_id = self._session_ids.get(request.request_id)
            if session_id is not None and step.is_decoding(request):
                decoding[session_id] = request
        if self._draftless:  # also one that waits: the coming step may admit it
            decoding = {}
        self._expect()
        num_prefills = sum(request.is_prefill_chunk for request in self.running)
        num_others = len(self.running) - num_prefills - len(decoding)
        may_wait = not self._has_prefill()  # a new request's first token is not held back
        proposals = self._speculation.propose(list(decoding), num_others, may_wait=may_wait)
        self._num_allowed = {}
        for session_id, proposal in proposals.items():
            request, token_ids = decoding[session_id], list(proposal.token_ids)
            allowed = grammar.allowed(self.structured_output_manager, request, token_ids)
            request.spec_token_ids = allowed
            if len(allowed) < len(token_ids):
                self._num_allowed[request.request_id] = len(allowed)
                if not allowed:  # no step will verify it
                    self._speculation.observe_verification(session_id, proposal.source, 1, 0)
                    self._journal.add(request.request_id, proposed_tokens=1)
        return {decoding[i].request_id: proposal for i, proposal in proposals.items()}

    def _expect(self) -> None:
        surroundings = step.surroundings(self, is_queue_stuck=self._is_queue_stuck)
        self._speculation.expect(surroundings)

    def _observe_turnaround(self) -> None:
        """Time what lies between a step and one that only decodes."""
        verified_at, self._verified_at = self._verified_at, None
        if verified_at is not None and self._step.load.is_decode_only:
            sources = {proposal.source for proposal in self._step.proposals.values()}
            self._speculation.observe_turnaround(
                self._step.started - verified_at, self._step.load.num_requests, sources
            )

    def _has_prefill(self) -> bool:
        """Whether some request is about to get nearer to its first token."""
        is_admitting = bool(self.waiting) and not self._is_queue_stuck
        return is_admitting or any(request.is_prefill_chunk for request in self.running)

    def _observe_verifications(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> None:
        for req_id, proposal in self._step.proposals.items():
            session_id = self._session_ids.get(req_id)
            depth = len(scheduler_output.scheduled_spec_decode_tokens[req_id])
            sampled = model_runner_output.sampled_token_ids
            index = model_runner_output.req_id_to_index[req_id]
            if session_id is not None and sampled and sampled[index]:
                num_accepted = len(sampled[index]) - 1
                if self._num_allowed.get(req_id) == depth == num_accepted:
                    depth += 1  # the next one was rejected, by the grammar
                self._speculation.observe_verification(
                    session_id, proposal.source, depth, num_accepted
                )
                self._journal.add(req_id, proposed_tokens=depth, accepted_tokens=num_accepted)


def _direct_path(config: TargetPluginConfig) -> Direct | None:
    if config.data_path == "relay":
        return None
    name = f"target-{socket.gethostname()}-{os.getpid()}"
    return partial(DirectPath, name, config.stall_timeout_s)


def _open_journal(core: EngineCoreConfig) -> Journal:
    if core.log_file is not None:
        logs.write_to(core.log_file)
    return open_journal(core.plugin.observability, "target", core.instance)
