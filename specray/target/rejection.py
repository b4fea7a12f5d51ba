"""Speculative sampling on a CPU, place by place (Leviathan et al., arXiv 2211.17192).

vLLM's, made for GPUs, computes all places of all requests at once: on a CPU the noise for one token
that might have to be drawn takes 0.85 ms a request, and twice that where the request has a seed.
Here a place is looked at when the one before it was accepted, and a token is drawn where one is
rejected: with eight requests that saves more than a step without drafts takes longer for sampling.
"""

import torch
import vllm.v1.sample.rejection_sampler as upstream
from torch import Tensor
from vllm.v1.sample.metadata import SamplingMetadata

from specray.target.drawing import draw
from specray.target.greedy import likeliest


def install() -> None:
    """In a worker on a CPU."""
    upstream.rejection_sample = rejection_sample


def rejection_sample(
    draft_token_ids: Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_logits: Tensor,
    bonus_token_ids: Tensor,
    sampling_metadata: SamplingMetadata,
    synthetic_mode: bool = False,
    synthetic_conditional_rates: Tensor | None = None,
    use_fp64_gumbel: bool = False,
) -> Tensor:
    """Stands in for vLLM's function of the same name; greedy batches are left to it.

    Args:
        draft_token_ids: [draft tokens].
        num_draft_tokens: of each request.
        max_spec_len: the most of them.
        cu_num_draft_tokens: [requests], cumulative.
        draft_probs: [draft tokens, vocab], what they were drawn from; None: point masses.
        target_logits: [draft tokens, vocab], with temperature, top-k and top-p applied.
        bonus_token_ids: [requests, 1], what follows where all are accepted.
        sampling_metadata: the requests' settings.
        synthetic_mode: for vLLM's benchmarks; left to it.
        synthetic_conditional_rates: likewise.
        use_fp64_gumbel: of no meaning here.

    Returns:
        [requests, max_spec_len + 1] int32: accepted tokens and the one that was added; then -1.
    """
    if synthetic_mode or sampling_metadata.all_greedy:
        return _upstream_rejection_sample(
            draft_token_ids,
            num_draft_tokens,
            max_spec_len,
            cu_num_draft_tokens,
            draft_probs,
            target_logits,
            bonus_token_ids,
            sampling_metadata,
            synthetic_mode=synthetic_mode,
            synthetic_conditional_rates=synthetic_conditional_rates,
            use_fp64_gumbel=use_fp64_gumbel,
        )
    generators = sampling_metadata.generators
    chances = upstream.generate_uniform_probs(
        len(draft_token_ids), num_draft_tokens, generators, target_logits.device
    ).tolist()
    proposed = draft_token_ids.tolist()
    assert sampling_metadata.temperature is not None  # which vLLM leaves out of greedy batches only
    is_greedy = (sampling_metadata.temperature == upstream.GREEDY_TEMPERATURE).tolist()
    shape = (len(num_draft_tokens), max_spec_len + 1)
    output = torch.full(shape, upstream.PLACEHOLDER_TOKEN_ID, dtype=torch.int32)
    start = 0
    for request, depth in enumerate(num_draft_tokens):
        tokens: list[int] = []
        for row in range(start, start + depth):
            if is_greedy[request]:
                added = int(likeliest(target_logits[row]))
                is_accepted = added == proposed[row]
            else:
                q = None if draft_probs is None else draft_probs[row]
                p = target_logits[row].softmax(dim=0, dtype=torch.float32)
                is_accepted = _is_accepted(p, q, proposed[row], chances[row])
                added = proposed[row]
                if not is_accepted:
                    added = _draw_rest(p, q, proposed[row], generators.get(request))
            tokens.append(added)
            if not is_accepted:
                break
        else:
            tokens.append(int(bonus_token_ids[request, 0]))
        output[request, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        start += depth
    return output


def _is_accepted(p: Tensor, q: Tensor | None, proposed: int, chance: float) -> bool:
    """Whether the proposed token is; `chance` is uniform in [0, 1)."""
    drafted = 1.0 if q is None else float(q[proposed])
    return drafted > 0 and float(p[proposed]) / drafted >= chance


def _draw_rest(
    p: Tensor,  # [vocab]
    q: Tensor | None,  # [vocab]
    rejected: int,
    generator: torch.Generator | None,
) -> int:
    """A token from what the target has beyond the draft."""
    if q is None:
        rest = p.clone()
        rest[rejected] = 0.0
    else:
        rest = (p - q).clamp_(min=0)
    weights = rest if rest.any() else p  # which differ by rounding only
    return int(draw(weights.unsqueeze(0), generator))


_upstream_rejection_sample = upstream.rejection_sample
