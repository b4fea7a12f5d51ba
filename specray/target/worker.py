"""The worker that vLLM runs on every rank: hands draft distributions to the rejection sampler."""

from typing import Any

import torch
from vllm.config import CompilationMode
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from specray.control.hardware import HardwareProfile
from specray.errors import StartupError
from specray.target import (
    drawing,
    float_products,
    greedy,
    hardware,
    norms,
    products,
    rejection,
    top_p,
    workarounds,
)
from specray.target.engine_drafter import DRAFTING_S, DraftingClock, with_drafting
from specray.target.names import HARDWARE_KEY
from specray.types import TruncatedDistributions

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Worker
else:
    from vllm.v1.worker.gpu_worker import Worker as _Worker

DISTRIBUTIONS = "specray_distributions"
"""Attribute of `SchedulerOutput` that carries request id -> distributions to every rank."""


HARDWARE = "specray_hardware"
"""Attribute of a worker's first `ModelRunnerOutput`: what it measured, a profile's `state`."""


class SpecrayWorker(_Worker):
    """vLLM's worker for this platform, with proposals' distributions for its model runner."""

    _measured: HardwareProfile | None = None  # until the engine has been told

    def init_device(self) -> None:
        """Mend upstream's faults, then build the model runner and teach it distributions."""
        workarounds.apply_to_worker()
        if current_platform.is_cpu():
            for part in (drawing, greedy, products, rejection, top_p):
                part.install()
            mode = self.vllm_config.compilation_config.mode
            if mode == CompilationMode.NONE:  # compiled, all is fused with what is around it
                for part in (float_products, norms):
                    part.install()
        super().init_device()
        runner = self.model_runner
        if self.use_v2_model_runner:
            raise StartupError(
                "specray needs vLLM's V1 model runner: set VLLM_USE_V2_MODEL_RUNNER to 0"
            )
        runner.__class__ = with_drafting(_with_distributions(type(runner)))
        runner.specray_clock = DraftingClock(self.device)
        workarounds.let_heads_read_all(runner)
        if not current_platform.is_cpu():  # before the model takes the memory
            name = self.vllm_config.additional_config[HARDWARE_KEY]
            self._measured = hardware.measure_device(self.vllm_config, name, self.device)

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Run a step, with its proposals' distributions within the model runner's reach."""
        self.model_runner.specray_distributions = getattr(scheduler_output, DISTRIBUTIONS, {})
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> Any:
        """Draw the step's tokens, and draft; with the first goes what the device can do."""
        if current_platform.is_cpu():
            with workarounds.prefills_draw_nothing(self.model_runner):
                output = super().sample_tokens(grammar_output)
        else:
            output = super().sample_tokens(grammar_output)
        if not isinstance(output, ModelRunnerOutput) or not output.req_ids:  # empty ones are one
            return output
        if self._measured is not None:
            setattr(output, HARDWARE, self._measured.state())
            self._measured = None
        drafting_s = self.model_runner.specray_clock.take()
        if drafting_s is not None:
            setattr(output, DRAFTING_S, drafting_s)
        return output


def _with_distributions(runner_cls: type) -> type:
    class SpecrayModelRunner(runner_cls):
        specray_distributions: dict[str, TruncatedDistributions]

        def _get_spec_decode_draft_probs(
            self, spec_decode_metadata: SpecDecodeMetadata
        ) -> torch.Tensor | None:  # [num_draft_tokens, vocab]
            if not self.specray_distributions:
                return None  # vLLM then takes every draft token for a point mass
            return dense_draft_probs(
                self.input_batch.req_ids,
                spec_decode_metadata,
                self.specray_distributions,
                self.model_config.get_vocab_size(),
            )

    return SpecrayModelRunner


def dense_draft_probs(
    req_ids: list[str],
    metadata: SpecDecodeMetadata,
    distributions: dict[str, TruncatedDistributions],
    vocab_size: int,
) -> torch.Tensor:
    """The step's draft distributions as vLLM's rejection sampler wants them.

    A request without distributions gets point masses at its draft tokens, which is the sampler's
    own rule for drafts without probabilities.

    Returns:
        float32 [num_draft_tokens, vocab], rows in the order of the batch's draft tokens.
    """
    draft_token_ids = metadata.draft_token_ids  # [num_draft_tokens]
    device = draft_token_ids.device
    probs = torch.zeros(len(draft_token_ids), vocab_size, dtype=torch.float32, device=device)
    probs.scatter_(1, draft_token_ids.long().unsqueeze(1), 1.0)
    start = 0
    for req_id, depth in zip(req_ids, metadata.num_draft_tokens, strict=False):
        q = distributions.get(req_id)
        if q is not None and depth > 0:
            rows = probs[start : start + depth]
            rows.zero_()
            # `tensor` copies: what came over the wire is read-only.
            ids = torch.tensor(q.token_ids[:depth], dtype=torch.int64, device=device)
            values = torch.tensor(q.probabilities[:depth], device=device)
            # They may miss 1 by a rounding, which would be the sampler's error: it takes them as
            # they are. The audit judges them so, too.
            rows.scatter_add_(1, ids, values / values.sum(dim=1, keepdim=True))
        start += depth
    return probs
