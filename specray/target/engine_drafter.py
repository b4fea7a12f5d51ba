"""vLLM's own drafter, as the worker runs it: timed, and left out where nothing is to be drafted."""

import logging
import time
from typing import Any

import torch
from vllm.config import SpeculativeConfig
from vllm.v1.core.sched.output import SchedulerOutput

from specray.target.engine_drafts import NO_DRAFTER, Drafter
from specray.target.workarounds import HEADS

logger = logging.getLogger(__name__)

DRAFTING_S = "specray_drafting_s"
"""Attribute of a worker's `ModelRunnerOutput`: how long its drafter took behind the step."""

_OF_ANY_DEPTH = ("eagle", "eagle3", "mtp", "draft_model", "ngram")
_WITHOUT_CONTEXT = ("ngram", "suffix", "medusa")


def find_drafter(config: SpeculativeConfig, max_model_len: int) -> Drafter:
    """What vLLM drafts by in this engine.

    Methods that are not known to draft fewer tokens than configured draft as many or none.
    """
    method = str(config.method)
    if method == "custom_class":
        return NO_DRAFTER
    has_own_loop = config.use_gemma4_mtp() or config.use_step3p5_mtp() or config.parallel_drafting
    model = config.draft_model_config
    is_short = model is not None and model.max_model_len < max_model_len
    if is_short and method not in HEADS:
        logger.warning(
            "the %s drafter reads %d tokens at most, of requests of up to %d: beside a longer one "
            "vLLM drafts for none",
            *(method, model.max_model_len, max_model_len),
        )
    is_fixed = method not in _OF_ANY_DEPTH or bool(has_own_loop)
    return Drafter(
        max_depth=config.num_speculative_tokens,
        is_fixed=is_fixed,
        has_context=method not in _WITHOUT_CONTEXT,
        is_shared=method == "suffix",
    )


class DraftingClock:
    """Times what lies between two calls on the device."""

    def __init__(self, device: torch.device) -> None:
        self._is_cpu = device.type == "cpu"
        self._started: Any = None
        self._ended: Any = None

    def start(self) -> None:
        """Drafting begins."""
        self._started, self._ended = self._now(), None

    def stop(self) -> None:
        """All of it has been handed to the device."""
        self._ended = self._now()

    def take(self) -> float | None:
        """Seconds between the two, once; None if nothing was drafted.

        Waits for a GPU that is not done; mostly it is, as vLLM takes the step's tokens from the
        same stream.
        """
        started, ended = self._started, self._ended
        self._started = self._ended = None
        if started is None or ended is None:
            return None
        if self._is_cpu:
            return float(ended - started)
        ended.synchronize()
        return float(started.elapsed_time(ended)) / 1e3

    def _now(self) -> Any:
        if self._is_cpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def with_drafting(runner_cls: type) -> type:
    """The model runner, whose drafter runs only where the scheduler says so, and is timed."""

    class DraftingModelRunner(runner_cls):
        specray_clock: DraftingClock
        _draft_token_ids: Any

        def propose_draft_token_ids(self, scheduler_output: SchedulerOutput, *args: Any) -> Any:
            if scheduler_output.num_spec_tokens_to_schedule == 0:
                return [[] for _ in self.input_batch.req_ids]
            self.specray_clock.start()
            try:
                return super().propose_draft_token_ids(scheduler_output, *args)
            finally:
                self.specray_clock.stop()

        def _copy_draft_token_ids_to_cpu(
            self, scheduler_output: SchedulerOutput, zeros_only: bool = False
        ) -> None:
            """Has nothing drafted where vLLM makes up zeros, as a request is too long for it."""
            if zeros_only:
                self._draft_token_ids = [[] for _ in self.input_batch.req_ids]
            super()._copy_draft_token_ids_to_cpu(scheduler_output)

    return DraftingModelRunner
