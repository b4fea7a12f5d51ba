"""Top-k and top-p on a CPU without sorting the vocabulary.

vLLM sorts every row, on a CPU 3 ms for 50,000 tokens: a verification pays that for each drafted
token, which is more than what speculation wins where top-p is set. The tokens that are kept nearly
always lie within the likeliest thousand; only rows where they don't are left to vLLM's own code.
"""

import torch
import vllm.v1.sample.ops.topk_topp_sampler as upstream
import vllm.v1.sample.rejection_sampler as rejection_sampler
from torch import Tensor

_NUM_LIKELIEST = 1024


def install() -> None:
    """In a worker on a CPU, for all its requests: those that do not speculate win as well."""
    for module in (upstream, rejection_sampler):
        module.apply_top_k_top_p = apply_top_k_top_p


def apply_top_k_top_p(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
    """Sets the logits of all tokens to -inf that top-k, then top-p drops; in place.

    Keeps the tokens that vLLM's `apply_top_k_top_p_pytorch` keeps, up to the rounding of sums at
    the border and the order of tokens that are equally likely.

    Args:
        logits: [rows, vocab] float32.
        k: [rows], at least 1; None where no row has one.
        p: [rows] in (0, 1]; likewise.
    """
    if p is None:
        return _upstream_apply_top_k_top_p(logits, k, p)
    kept, token_ids = logits.topk(min(_NUM_LIKELIEST, logits.shape[1]), dim=1)
    has_k = torch.zeros(len(kept), dtype=torch.bool) if k is None else k < logits.shape[1]
    is_beyond_k = torch.zeros_like(kept, dtype=torch.bool)
    if k is not None:
        last = k.long().clamp(max=kept.shape[1]) - 1
        is_beyond_k = kept < kept.gather(1, last.unsqueeze(1))  # as likely as the last one: stays
    mass = _mass_from_each_on(logits, kept, token_ids, is_beyond_k, has_k)
    is_cut = is_beyond_k | (mass <= 1 - p.unsqueeze(1))
    is_cut[:, 0] = False
    # Where top-k or top-p may end beyond the likeliest, they are not known to be all that is kept.
    is_known = is_beyond_k[:, -1].where(has_k, is_cut[:, -1])
    if kept.shape[1] == logits.shape[1]:
        is_known.fill_(True)
    cuts_nothing = (p >= 1) & ~has_k
    whole = torch.nonzero(cuts_nothing).flatten()
    others = torch.nonzero(~is_known & ~cuts_nothing).flatten()
    rows, other_rows = logits[whole], logits[others]
    logits.fill_(-torch.inf).scatter_(1, token_ids, kept.masked_fill_(is_cut, -torch.inf))
    logits[whole] = rows
    if len(others):
        other_k = None if k is None else k[others]
        logits[others] = _upstream_apply_top_k_top_p(other_rows, other_k, p[others])
    return logits


def _mass_from_each_on(
    logits: Tensor,  # [rows, vocab]
    kept: Tensor,  # [rows, likeliest]
    token_ids: Tensor,  # [rows, likeliest]
    is_beyond_k: Tensor,  # [rows, likeliest]
    has_k: Tensor,  # [rows]
) -> Tensor:
    """The probability of each token and all less likely ones, [rows, likeliest].

    That is what vLLM compares with 1 - p: summed from the other end it would be less exact.
    """
    of_all = logits.softmax(dim=1)
    probabilities = of_all.gather(1, token_ids)
    rest = of_all.scatter_(1, token_ids, 0.0).sum(dim=1, keepdim=True)
    if has_k.any():
        of_k = kept.masked_fill(is_beyond_k, -torch.inf).softmax(dim=1)
        probabilities = of_k.where(has_k.unsqueeze(1), probabilities)
        rest = rest.masked_fill(has_k.unsqueeze(1), 0.0)
    return probabilities.flip(1).cumsum(dim=1).flip(1) + rest


_upstream_apply_top_k_top_p = upstream.apply_top_k_top_p
