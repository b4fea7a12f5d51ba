"""What a step of vLLM's scheduler holds, and will hold."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from specray.control.planner import Surroundings
from specray.control.roofline import StepLoad
from specray.target import requests
from specray.types import Proposal


def is_decoding(request: Request) -> bool:
    """Whether the request's next step computes just its newest token."""
    return not request.is_prefill_chunk and request.num_computed_tokens + 1 == request.num_tokens


def surroundings(scheduler: Scheduler, *, is_queue_stuck: bool) -> Surroundings:
    """What the next will hold beside the requests that decode; drafts get what that leaves.

    Args:
        scheduler: Before it schedules the step.
        is_queue_stuck: Whether it will admit nobody who waits.
    """
    running = scheduler.running
    chunks = [r.num_tokens - r.num_computed_tokens for r in running if r.is_prefill_chunk]
    admitted: list[Request] = []
    if not is_queue_stuck:
        places = max(0, scheduler.max_num_running_reqs - len(running))
        admitted = list(itertools.islice(scheduler.waiting, places))
        chunks += [request.num_tokens - request.num_computed_tokens for request in admitted]
    room = max(0, scheduler.max_num_scheduled_tokens - len(running))
    num_prefill_tokens = min(sum(chunks), room)
    kv_room = _kv_room(scheduler, len(running) + len(admitted), num_prefill_tokens)
    return Surroundings(
        sum(request.num_computed_tokens for request in running),
        len(chunks),
        num_prefill_tokens,
        min(room - num_prefill_tokens, kv_room),
        sum(is_decoding(r) and requests.is_sampled(r) for r in running),
    )


def _kv_room(scheduler: Scheduler, num_requests: int, num_prefill_tokens: int) -> int:
    """Tokens in the blocks that the step leaves free if it verifies nothing.

    With more draft tokens, vLLM would drive a request out of the cache for them.
    """
    free_blocks: int = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    # Each request may begin a block with its sure token or its chunk; chunks fill others.
    num_needed = num_requests + math.ceil(num_prefill_tokens / scheduler.block_size)
    return max(0, free_blocks - num_needed) * scheduler.block_size


def load(output: SchedulerOutput, by_id: Mapping[str, Request]) -> StepLoad:
    """What a scheduled step holds.

    Args:
        output: The step.
        by_id: The engine's requests, which are already advanced to its end.
    """
    num_kv_tokens = sum(by_id[r].num_computed_tokens for r in output.num_scheduled_tokens)
    drafts = output.scheduled_spec_decode_tokens
    num_sampled = sum(
        1 + len(drafts.get(r, ()))
        for r in output.num_scheduled_tokens
        if not by_id[r].is_prefill_chunk and requests.is_sampled(by_id[r])
    )
    num_prefill_tokens = sum(
        num_tokens
        for r, num_tokens in output.num_scheduled_tokens.items()
        if num_tokens > 1 + len(drafts.get(r, ()))
    )
    return StepLoad(
        len(output.num_scheduled_tokens),
        output.total_num_scheduled_tokens,
        num_kv_tokens,
        num_sampled,
        num_prefill_tokens,
    )


def facts(
    output: SchedulerOutput, proposals: Mapping[str, Proposal], session_ids: Mapping[str, int]
) -> dict[str, list[Any]]:
    """What a timeline tells of each request of a step.

    Args:
        output: The step.
        proposals: What it verifies, by request.
        session_ids: Those of the requests that may speculate.
    """
    drafts = output.scheduled_spec_decode_tokens
    ran = list(output.num_scheduled_tokens)
    return {
        "sessions": [session_ids.get(r) for r in ran],
        "depths": [len(drafts.get(r, ())) for r in ran],
        "sources": [proposals[r].source if r in proposals else None for r in ran],
    }


def has_admitted(output: SchedulerOutput) -> bool:
    """Whether somebody who waited is in it."""
    return bool(output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids)
