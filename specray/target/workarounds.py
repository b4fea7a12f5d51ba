"""Upstream faults that specray lives with, each with the version it is for.

`tests/target/test_workarounds.py` runs the unmended code too and fails as soon as upstream no
longer needs one of these.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec
import torch
import vllm.v1.sample.rejection_sampler as rejection_sampler
import vllm.v1.sample.sampler as sampler
import vllm.v1.worker.gpu_model_runner as gpu_model_runner
from vllm.config import SpeculativeConfig, VllmConfig
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

HEADS = ("eagle", "eagle3")

VLLM_VERSION = "0.29.0"
"""The version that all of these were made for and tested with."""


def apply_to_worker() -> None:
    """In every worker, before its model runner is built."""
    if current_platform.is_cpu():
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
        sampler.batched_count_greater_than = batched_count_greater_than
    gpu_model_runner.build_logitsprocs = build_logitsprocs
    ThinkingBudgetStateHolder.apply_to_logits = _force_in_rows_of_the_step


def apply_to_frontend() -> None:
    """In the process of the OpenAI server, before its engine is built."""
    SamplingParams._validate_spec_decode = _accept_logit_bias
    if OutputProcessor.process_outputs is not _process_one_token_at_a_time:
        OutputProcessor.process_outputs = _process_one_token_at_a_time


@contextmanager
def prefills_draw_nothing(runner: GPUModelRunner) -> Iterator[None]:
    """Sample without touching the generators of seeded requests whose prompt is not read yet.

    vLLM 0.29.0 draws a token for each part of a prompt, throws it away and takes the generator's
    offset back, which CPU generators do not have: "CPU Generator does not use offset" ends the
    engine.
    """
    generators, num_requests = runner.input_batch.generators, runner.input_batch.num_reqs
    is_partial = runner.discard_request_mask.np[:num_requests]
    held = {i: generators.pop(i) for i in list(generators) if is_partial[i]}
    try:
        yield
    finally:
        generators.update(held)


def let_heads_read_all(runner: GPUModelRunner) -> None:
    """Let an EAGLE head draft for requests that are longer than the texts that it was trained on.

    vLLM 0.29.0 gives such a head positions for all of the target's lengths
    (`_maybe_override_draft_max_position_embeddings`), and yet drafts for nobody beside a request
    that is longer than the head's own config says, 2,048 tokens for many.
    """
    config = runner.speculative_config
    if config is not None and config.method in HEADS:
        runner.effective_drafter_max_model_len = runner.max_model_len


def expand_batch_to_tokens(
    x: torch.Tensor,  # [batch]
    cu_num_tokens: torch.Tensor,  # [batch], cumulative
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:  # [num_tokens]
    """Repeat each request's value for its draft tokens.

    vLLM 0.29.0 on the CPU: the C++ kernel writes into a copy that is dropped
    (`utils/cpu_triton_utils.py`, `_expand_kernel_impl`), so temperature, top-k and top-p of draft
    positions are uninitialised memory and sampled output is garbage.
    """
    replaced = torch.where(x == replace_from, replace_to, x)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return replaced.repeat_interleave(counts.long(), output_size=num_tokens)


def batched_count_greater_than(
    x: torch.Tensor,  # [rows, vocab]
    values: torch.Tensor,  # [rows, 1]
) -> torch.Tensor:  # [rows] int64
    """Rank each row's value: how many of the row are at least as large.

    vLLM 0.29.0 compiles this at the first request that asks for logprobs. On the CPU all others
    wait for that, and it takes a C++ compiler. Row by row, as what is compared would take as much
    again as the logprobs of a long prompt.
    """
    ranks = x.new_empty(len(x), dtype=torch.int64)
    for rank, row, value in zip(ranks, x, values, strict=True):
        rank.copy_(torch.count_nonzero(row >= value))
    return ranks


def build_logitsprocs(
    vllm_config: VllmConfig,
    device: torch.device,
    is_pin_memory: bool,
    is_pooling_model: bool,
    custom_logitsprocs: Any = (),
) -> LogitsProcessors:
    """Build vLLM's own logits processors also when speculation is configured.

    vLLM 0.29.0 leaves out logit_bias and min_p for the whole engine as soon as it may speculate,
    since its rejection sampler does not apply them to draft positions. It does apply them to the
    position after the last draft token, so they are right for requests kept at depth 0, which is
    what our scheduler does with them. Custom processors stay refused, as by vLLM.
    """
    if is_pooling_model or custom_logitsprocs:
        return _upstream_build_logitsprocs(
            vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs
        )
    return LogitsProcessors(
        processor(vllm_config, device, is_pin_memory) for processor in BUILTIN_LOGITS_PROCESSORS
    )


def _force_in_rows_of_the_step(
    self: ThinkingBudgetStateHolder,
    logits: torch.Tensor,  # [rows, vocab]
    predict_bonus_token: bool,
    spec_token_ids: list[list[int]] | None,
) -> torch.Tensor:
    """Force the end of a thinking budget in the request's own row.

    vLLM 0.29.0 lays out rows by draft tokens wherever it may speculate, also in a step without any,
    whose rows are one a request: all that is forced then lands in the first request's.
    """
    configured = self.in_spec_mode
    self.in_spec_mode = configured and (predict_bonus_token or any(spec_token_ids or ()))
    try:
        return _upstream_apply_to_logits(self, logits, predict_bonus_token, spec_token_ids)
    finally:
        self.in_spec_mode = configured


def _accept_logit_bias(self: SamplingParams, speculative_config: SpeculativeConfig | None) -> None:
    """vLLM 0.29.0 refuses logit_bias and min_p of any request; see `build_logitsprocs`."""


def _process_one_token_at_a_time(
    self: OutputProcessor, engine_core_outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any
) -> Any:
    """Let stop strings end a request at the token that completes them.

    vLLM 0.29.0 looks for stop strings once per step, so tokens that were accepted together with
    the stop string stay in `token_ids`, logprobs and usage counts. Requests with stop strings get
    their tokens one by one, as without speculation; what follows the stop is then ignored.
    """
    outputs = chain.from_iterable(
        _split(output) if _has_stop_strings(self, output) else (output,)
        for output in engine_core_outputs
    )
    return _upstream_process_outputs(self, list(outputs), *args, **kwargs)


def _has_stop_strings(processor: OutputProcessor, output: EngineCoreOutput) -> bool:
    if len(output.new_token_ids) < 2:
        return False
    state = processor.request_states.get(output.request_id)
    return state is not None and bool(getattr(state.detokenizer, "stop", None))


def _split(output: EngineCoreOutput) -> Iterator[EngineCoreOutput]:
    last = len(output.new_token_ids) - 1
    for i, token_id in enumerate(output.new_token_ids):
        piece: dict[str, Any] = {
            "new_token_ids": [token_id],
            "new_logprobs": output.new_logprobs and output.new_logprobs.slice_request(i, 1),
            "new_sampling_mask": (
                output.new_sampling_mask and output.new_sampling_mask.slice_request(i, 1)
            ),
        }
        if output.routed_experts is not None:
            piece["routed_experts"] = output.routed_experts[i : i + 1]  # a row for each token
        if i > 0:
            piece |= {"new_prompt_logprobs_tensors": None, "events": None, "prefill_stats": None}
        if i < last:
            piece |= {"finish_reason": None, "stop_reason": None, "spec_decode_metrics": None}
        yield msgspec.structs.replace(output, **piece)


_upstream_apply_to_logits = ThinkingBudgetStateHolder.apply_to_logits
_upstream_build_logitsprocs = gpu_model_runner.build_logitsprocs
_upstream_process_outputs = OutputProcessor.process_outputs
