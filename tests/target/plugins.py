"""What the tests load into vLLM's engine core in the place of specray's scheduler."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from specray.control.depth import DepthPlan
from specray.control.latency import WaitTime
from specray.control.planner import Planner
from specray.control.survival import Offer
from specray.target import rendezvous
from specray.target.engine_drafter import find_drafter
from specray.target.patience import Patience
from specray.target.scheduler import SpeculativeScheduler
from specray.target.session import Session
from specray.target.speculation import Speculation
from specray.target.stop_gap import make_stop_gap
from specray.types import DRAFT_SOURCES

CREDULOUS = "credulous"
PLANNING_SCHEDULER = "tests.target.plugins.PlanningScheduler"
STUBBORN_SCHEDULER = "tests.target.plugins.StubbornScheduler"

STEP_ARG = "step_s"
"""Key of `extra_args` in which a request says how long its steps take a `StubbornScheduler`."""

STEP_S = 0.02  # longer than a tiny model's


class ObservedScheduler(SpeculativeScheduler):
    """Writes down what each step did; the tests read the file whose name is in the config."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._steps_file = Path(vllm_config.additional_config["journal"])
        self._block_size = vllm_config.cache_config.block_size

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        drafts = scheduler_output.scheduled_spec_decode_tokens
        crossed = 0
        for req_id, ids in drafts.items():
            if req_id not in self.requests:
                continue  # aborted meanwhile
            index = model_runner_output.req_id_to_index[req_id]
            accepted = len(model_runner_output.sampled_token_ids[index]) - 1
            # The newest drafts' KV stands before the computed length, which rolls back now.
            end = self.requests[req_id].num_computed_tokens
            start = end - (len(ids) - accepted)
            crossed += (end - 1) // self._block_size > (start - 1) // self._block_size
        num_scheduled = scheduler_output.num_scheduled_tokens
        running = {request.request_id: request for request in self.running}
        chunks = sum(running[r].is_prefill_chunk for r in num_scheduled if r in running)
        depths = {req_id: len(drafts.get(req_id, ())) for req_id in num_scheduled}
        # What a target proposes itself has taken no draft any time either.
        verified = [p for p in self._step.proposals.values() if p.source in DRAFT_SOURCES]
        step = {
            "num_crossed": crossed,
            "num_chunks": chunks,
            "num_ahead": sum(proposal.draft_time_us == 0 for proposal in verified),
            "depths": depths,
        }
        line = json.dumps(step)
        with self._steps_file.open("a") as steps:
            steps.write(f"{line}\n")
        return super().update_from_output(scheduler_output, model_runner_output)


class PlanningScheduler(ObservedScheduler):
    """Decides as specray's own, for steps that take longer, whatever they verify.

    As a large model's do; those of the tiny one cost so little that hardly any speculation pays.
    """

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        time.sleep(STEP_S)
        return super().update_from_output(scheduler_output, model_runner_output)


class StubbornScheduler(ObservedScheduler):
    """Verifies proposals however bad they are, each step as deep as chance has it.

    It also believes the distributions that come through the router `CREDULOUS`.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        speculation = Speculation(
            self._streams._buffer,
            self._streams,
            planner=StubbornPlanner(),
            patience=StubbornPatience(),
            stop_gap=make_stop_gap(rendezvous.read().plugin),
            drafter=find_drafter(vllm_config.speculative_config, self.max_model_len),
            max_depth=vllm_config.num_speculative_tokens,
        )
        _replace(self, "_speculation", speculation)
        self._streams.report_stats_of(speculation.stats)
        trusts = self._streams.trusts
        _replace(self._streams, "trusts", lambda router: router == CREDULOUS or trusts(router))
        _replace(self, "_has_prefill", lambda: False)  # steps with chunks wait like the others

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        params = [request.sampling_params for request in self.running]
        args = [p.extra_args for p in params if p is not None and p.extra_args]
        time.sleep(max((arg.get(STEP_ARG, 0.0) for arg in args), default=0.0))
        return super().update_from_output(scheduler_output, model_runner_output)


def total_depth(offer: Offer) -> int:
    """Its tokens, and its tail's."""
    return offer.max_depth + (offer.tail.max_depth if offer.tail is not None else 0)


class StubbornPlanner(Planner):
    """Wants full depth, takes a random one, and always finds waiting worthwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(0)

    def plan(self, offers: Sequence[Offer], num_plain: int, wait_s: float = 0.0) -> DepthPlan:
        depths = tuple(
            self._random.choice((most, self._random.randint(0, most)))
            for most in map(total_depth, offers)
        )
        num_expected = 1.0 + sum(map(total_depth, offers))
        return DepthPlan(depths, num_expected, 1.0, 1.0, saved_s=1.0)

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
        return tuple(offer.max_depth for offer in offers)


class StubbornPatience(Patience):
    """Waits as long as the policy allows, so that a busy machine still shows speculation."""

    def expected_wait_s(self, max_wait_s: float, wanted: int) -> float:
        return 0.0

    def answer_s(self, max_wait_s: float, wanted: int) -> float:
        return 0.0

    def deadline(self, awaited: Sequence[Session], max_wait_s: float) -> float:
        return max(session.committed_at for session in awaited) + max_wait_s


def _replace(owner: object, name: str, part: object) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, part)
