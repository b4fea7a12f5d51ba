"""vLLM engines with specray's plug-ins, and routers with a draft of the test's choice."""

import asyncio
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from vllm.inputs import TokensPrompt

from specray.config import EngineCoreConfig, TargetPluginConfig
from specray.draft.proposer import Proposer
from specray.draft.service import DraftService
from specray.errors import SessionRejectedError
from specray.target import names, rendezvous, workarounds
from specray.target.threads import bound_to_cores
from specray.types import Commit, Proposal, ProposalFrame, SessionFrame, SpeculationPolicy
from specray.wire.client import Stream, configure, connect_target, get_stats
from specray.wire.stats import TargetStats
from tests.target.drafts import Disturbance
from tests.target.plugins import STUBBORN_SCHEDULER

MAX_DEPTH = 5
MAX_WAIT_MS = 100.0  # a busy machine shall not turn speculation off; proposals come in 1 ms or 2
PATIENCE_S = 30.0
GRACE_S = 1.0  # vLLM would collect garbage for five seconds more
ROUTER = "router-1"
_POLICY = SpeculationPolicy(max_depth=MAX_DEPTH, max_wait_ms=MAX_WAIT_MS)
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Job:
    """A request of a test."""

    prompt: tuple[int, ...]
    params: SamplingParams
    start: int = 0  # tokens of other jobs' answers that must have come before it is added
    abort_at: int | None = None  # tokens of its answer after which its client goes away


@dataclass(frozen=True, slots=True)
class Step:
    """What the observed scheduler wrote about one step."""

    num_crossed: int  # requests whose rejected tokens reached into a block that others did not
    num_chunks: int  # requests that prefilled a part of their prompt
    num_ahead: int  # proposals verified that drafts had sent before the commit that they extend
    depths: dict[str, int]  # draft tokens verified, by request id


class Engine:
    """A vLLM engine in processes of its own, driven from the test's."""

    def __init__(self, vllm_engine: LLMEngine, address: str, journal: Path) -> None:
        self._engine = vllm_engine
        self._journal = journal
        self.address = address

    def run(self, jobs: Sequence[Job]) -> list[RequestOutput]:
        """See `run_jobs`."""
        return run_jobs(self._engine, jobs)

    def answers(self, jobs: Sequence[Job]) -> list[list[int]]:
        """The generated tokens of each job's first answer."""
        return [list(output.outputs[0].token_ids) for output in self.run(jobs)]

    @contextmanager
    def configured(self, **changes: Any) -> Iterator[None]:
        """With another policy for a while."""
        asyncio.run(configure(self.address, replace(_POLICY, **changes)))
        try:
            yield
        finally:
            asyncio.run(configure(self.address, _POLICY))

    def forget_prefixes(self) -> None:
        """Empties the prefix cache."""
        assert self._engine.reset_prefix_cache()

    def stats(self) -> TargetStats:
        """The target's counters, over the wire."""
        return asyncio.run(get_stats(self.address))

    def metric(self, name: str) -> float:
        """A counter of vLLM's own."""
        return sum(m.value for m in self._engine.get_metrics() if m.name == name)

    def take_steps(self) -> list[Step]:
        """The steps since the last call."""
        lines = self._journal.read_text().splitlines()
        os.truncate(self._journal, 0)
        return [Step(**json.loads(line)) for line in lines]


def run_jobs(engine: LLMEngine, jobs: Sequence[Job]) -> list[RequestOutput]:
    """Runs the jobs together, each from its start on; outputs in the jobs' order."""
    by_id = {str(next(_ids)): job for job in jobs}
    waiting = sorted(by_id, key=lambda request_id: -by_id[request_id].start)
    outputs: dict[str, RequestOutput] = {}
    while waiting or engine.has_unfinished_requests():
        num_tokens = sum(len(c.token_ids) for o in outputs.values() for c in o.outputs)
        is_idle = not engine.has_unfinished_requests()
        while waiting and (is_idle or by_id[waiting[-1]].start <= num_tokens):
            request_id = waiting.pop()
            job = by_id[request_id]
            prompt = TokensPrompt(prompt_token_ids=list(job.prompt))
            engine.add_request(request_id, prompt, job.params.clone())
            is_idle = False
        news = {output.request_id: output for output in engine.step()}
        outputs |= news
        engine.abort_request([i for i, output in news.items() if _is_to_abort(by_id[i], output)])
    return [outputs[request_id] for request_id in by_id]


def _is_to_abort(job: Job, output: RequestOutput) -> bool:
    if job.abort_at is None or output.finished:
        return False
    return len(output.outputs[0].token_ids) >= job.abort_at


@contextmanager
def plain_engine(model: Path, **kwargs: Any) -> Iterator[LLMEngine]:
    """A vLLM engine as it comes; all its processes are gone afterwards."""
    with mock.patch.dict(os.environ, _environment(kwargs.get("tensor_parallel_size", 1))):
        before = _children()
        engine = _start(EngineArgs(model=str(model), **_BASE | kwargs))
    started = [p for p in _children() - before if "resource_tracker" not in str(p.cmdline())]
    try:
        yield engine
    finally:
        has_workers = kwargs.get("tensor_parallel_size", 1) > 1
        engine.engine_core.shutdown(None if has_workers else GRACE_S)
        engine.engine_core.ctx.destroy(linger=0)
        _, alive = psutil.wait_procs(started, timeout=PATIENCE_S)
        assert not alive


def _start(args: EngineArgs) -> LLMEngine:
    """The worker is in the engine core where that is possible, as in `serve.target_engine`."""
    config = args.create_engine_config()
    if config.parallel_config.world_size > 1:
        return LLMEngine.from_vllm_config(config)
    config.parallel_config.distributed_executor_backend = "uni"
    with bound_to_cores(config):
        return LLMEngine.from_vllm_config(config)


@contextmanager
def specray_engine(
    model: Path,
    scheduler_cls: str = STUBBORN_SCHEDULER,
    ngrams: Path | None = None,
    **kwargs: Any,
) -> Iterator[Engine]:
    """A vLLM engine with the plug-ins, as `specray.serve.settings.plugged_in` sets them."""
    journal = model / f"steps-{time.monotonic_ns()}.jsonl"
    journal.touch()
    workarounds.apply_to_frontend()
    plugin = TargetPluginConfig(
        max_depth=MAX_DEPTH,
        policy=_POLICY,
        trust_draft_distributions=True,
        ngrams=str(ngrams) if ngrams is not None else None,
    )
    ours = {
        "scheduler_cls": scheduler_cls,
        "worker_cls": names.WORKER_CLS,
        "async_scheduling": False,
        "speculative_config": {
            "method": "custom_class",
            "model": names.PROPOSER_CLS,
            "num_speculative_tokens": MAX_DEPTH,
        },
        "additional_config": {
            names.HARDWARE_KEY: "auto",
            "journal": str(journal),
        },
    }
    rendezvous.offer(EngineCoreConfig(plugin=plugin))
    with plain_engine(model, **ours | kwargs) as engine:
        yield Engine(engine, rendezvous.take_address(), journal)


@dataclass(frozen=True, slots=True, eq=False)
class _Relay:
    """What a draft's service sees of a router."""

    name: str
    stream: Stream[SessionFrame, ProposalFrame]  # to the target
    disturbance: Disturbance[Proposal] | None = None

    def send(self, frame: ProposalFrame) -> None:
        if self.disturbance is not None:
            frame = replace(frame, proposals=tuple(self.disturbance.pass_on(frame.proposals)))
        _loop().call_soon_threadsafe(self.stream.send, frame)


class FakeRouter:
    """A router's stream to a target, with a proposer at its end, on a thread for all routers.

    A proposer answers each frame at once and drafts no further; in a draft's service it is run as
    in a replica.

    After `num_frames` frames it hangs up, and connects anew for the next proposer if there is one.
    What a draft's service sends may be disturbed on its way, and what it is sent.
    """

    def __init__(
        self,
        address: str,
        *proposers: Proposer | DraftService,
        name: str = ROUTER,
        num_frames: int | None = None,
        disturbance: Disturbance[Proposal] | None = None,
        frames: Disturbance[SessionFrame] | None = None,
    ) -> None:
        self._address = address
        self._name = name
        self._proposers = proposers
        self._num_frames = num_frames
        self._disturbance = disturbance
        self._frames = frames
        self._is_connected = threading.Event()
        self._stream: Stream[SessionFrame, ProposalFrame] | None = None
        self._is_leaving = False
        self._work: Future[None] | None = None

    def __enter__(self) -> "FakeRouter":
        self._work = asyncio.run_coroutine_threadsafe(self._serve_all(), _loop())
        assert self._is_connected.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._work is not None
        _loop().call_soon_threadsafe(self._leave)
        self._work.result(PATIENCE_S)

    def _leave(self) -> None:
        self._is_leaving = True
        if self._stream is not None:
            self._stream.cancel()

    async def _serve_all(self) -> None:
        for proposer in self._proposers:
            self._stream = await connect_target(self._address, self._name)
            self._is_connected.set()
            try:
                if isinstance(proposer, DraftService):
                    await self._relay(self._stream, proposer)
                else:
                    await self._serve(self._stream, proposer)
            finally:
                await self._stream.close()
            if self._is_leaving:
                break

    async def _serve(self, stream: Stream[SessionFrame, ProposalFrame], proposer: Proposer) -> None:
        is_last = proposer is self._proposers[-1] and len(self._proposers) > 1
        num_left = None if is_last else self._num_frames
        async for frame in stream:
            answer = _answer(proposer, frame)
            if self._is_leaving:
                break  # the frame was read before the stream was cancelled
            if answer:
                stream.send(answer)
            if num_left is not None:
                num_left -= 1
                if num_left == 0:
                    stream.cancel()

    async def _relay(
        self, stream: Stream[SessionFrame, ProposalFrame], draft: DraftService
    ) -> None:
        relay = _Relay(self._name, stream, self._disturbance)
        draft.connected(relay)
        async for frame in stream:
            for passed in [frame] if self._frames is None else self._frames.pass_on([frame]):
                draft.received(relay, passed)
        draft.disconnected(relay)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop for all routers: gRPC's poller goes on calling the first loop that it met."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="routers", daemon=True).start()
    return loop


def _answer(proposer: Proposer, frame: SessionFrame) -> ProposalFrame:
    for session in frame.opens:
        proposer.open(session)
    rejected = [commit.session_id for commit in frame.commits if not _takes(proposer, commit)]
    for session_id in frame.closes:
        proposer.close(session_id)
    gone = {*frame.closes, *rejected}
    wanted = [c.session_id for c in frame.commits if c.depth and c.session_id not in gone]
    proposals = proposer.propose(wanted) if wanted else []
    return ProposalFrame(tuple(proposals), (*rejected, *proposer.take_evicted()))


def _takes(proposer: Proposer, commit: Commit) -> bool:
    """Whether it still holds the session; a commit may cross the news that it does not."""
    try:
        proposer.commit(commit)
    except SessionRejectedError:
        return False
    return True


def speculating(
    params: SamplingParams, depth: int | None = None, router: str = ROUTER, **args: object
) -> SamplingParams:
    """The same parameters for a request that came through a router."""
    params = params.clone()
    params.extra_args = {names.ROUTER_ARG: router, **args}
    if depth is not None:
        params.extra_args[names.DEPTH_ARG] = depth
    return params


_BASE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 1024,
    "enforce_eager": True,
    "disable_log_stats": False,
    "block_size": 32,  # the smallest for the CPU backend
    "seed": 0,
}


def _environment(num_ranks: int) -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    binding = "|".join(str(cores[(first + i) % len(cores)]) for i in range(num_ranks))
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": binding,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
