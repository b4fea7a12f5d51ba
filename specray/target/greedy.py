"""Greedy choices on a CPU: the first of the likeliest tokens, from the logits as they are.

vLLM widens each row to float32, copies those that verify twice and takes `argmax`, which PyTorch
does not vectorise on CPUs (`max` it does): with eight requests two tokens deep 3.5 ms instead of 1,
for 49,152 tokens. Widening changes no order, so only what processors and log-probabilities are
computed from has to be widened.
"""

from typing import Any

import torch
import vllm.v1.sample.rejection_sampler as upstream
from torch import Tensor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata


def install() -> None:
    """In a worker on a CPU; requests that do not speculate win as well."""
    upstream.RejectionSampler.forward = verify
    Sampler.forward = choose
    Sampler.greedy_sample = staticmethod(likeliest)


def likeliest(logits: Tensor) -> Tensor:
    """Stands in for `Sampler.greedy_sample`: [..., vocab] to [...] int64, the first of equals."""
    return logits.max(dim=-1).indices


def choose(
    self: Sampler,
    logits: Tensor,
    sampling_metadata: SamplingMetadata,
    predict_bonus_token: bool = False,
    logprobs_mode_override: Any = None,
) -> SamplerOutput:
    """Stands in for `Sampler.forward`, likewise: a token for each row, [rows, 1] int32."""
    if not _takes_the_likeliest(sampling_metadata):
        return _upstream_choose(
            self, logits, sampling_metadata, predict_bonus_token, logprobs_mode_override
        )
    tokens = likeliest(logits).to(torch.int32).unsqueeze(-1)
    return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)


def verify(
    self: upstream.RejectionSampler,
    metadata: SpecDecodeMetadata,
    draft_probs: Tensor | None,
    logits: Tensor,
    sampling_metadata: SamplingMetadata,
) -> SamplerOutput:
    """Stands in for `RejectionSampler.forward`, to which it leaves what asks for more.

    Args:
        self: the sampler.
        metadata: the step's drafts, and which rows belong to them.
        draft_probs: [draft tokens, vocab]; of no meaning where all is greedy.
        logits: [draft tokens + requests, vocab], of the model's dtype.
        sampling_metadata: the requests' settings.

    Returns:
        [requests, most drafted + 1] int32: accepted tokens and the one that was added; then -1.
    """
    if self.synthetic_mode or not _takes_the_likeliest(sampling_metadata):
        return _upstream_verify(self, metadata, draft_probs, logits, sampling_metadata)
    chosen = likeliest(logits)
    verified = chosen[metadata.target_logits_indices].tolist()
    bonus = chosen[metadata.bonus_logits_indices].tolist()
    proposed = metadata.draft_token_ids.tolist()
    depths = metadata.num_draft_tokens
    output = torch.full(
        (len(depths), metadata.max_spec_len + 1), upstream.PLACEHOLDER_TOKEN_ID, dtype=torch.int32
    )
    start = 0
    for request, depth in enumerate(depths):
        tokens = [*verified[start : start + depth], bonus[request]]
        num_accepted = 0
        while num_accepted < depth and tokens[num_accepted] == proposed[start + num_accepted]:
            num_accepted += 1
        output[request, : num_accepted + 1] = torch.tensor(tokens[: num_accepted + 1])
        start += depth
    return SamplerOutput(sampled_token_ids=output, logprobs_tensors=None)


def _takes_the_likeliest(settings: SamplingMetadata) -> bool:
    """Whether nothing but the model's logits decides, and nothing but tokens is asked for."""
    holder = settings.thinking_budget_state_holder
    return (
        settings.all_greedy
        and settings.max_num_logprobs is None
        and not settings.logprob_token_ids
        and settings.no_penalties
        and not settings.bad_words_token_ids
        and settings.allowed_token_ids_mask is None
        and (holder is None or not holder.has_tracked_requests())
        and all(map(_is_idle, settings.logitsprocs.non_argmax_invariant))
    )


def _is_idle(processor: Any) -> bool:
    """Whether no request of the batch uses it; vLLM has no question for that."""
    if isinstance(processor, LogitBiasLogitsProcessor):
        return not processor.biases
    return isinstance(processor, MinTokensLogitsProcessor) and not processor.min_toks


_upstream_choose = Sampler.forward
_upstream_verify = upstream.RejectionSampler.forward
