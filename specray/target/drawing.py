"""Drawing tokens on a CPU by their cumulative sums.

vLLM's way, noise for each token of the vocabulary, is made for GPUs: on a CPU it takes 0.6 ms a
row, and the first request that samples holds up all others for 4 to 21 s, as it is compiled then.
"""

import torch
import vllm.v1.sample.ops.topk_topp_sampler as upstream
from torch import Tensor


def install() -> None:
    """In a worker on a CPU; batches that hold a request with a seed are left to vLLM."""
    upstream.compiled_random_sample = draw_from_logits


def draw_from_logits(logits: Tensor) -> Tensor:
    """Stands in for vLLM's `compiled_random_sample`.

    Args:
        logits: [rows, vocab], with temperature, top-k and top-p applied.

    Returns:
        A token of each row, [rows] int64.
    """
    return draw(logits.softmax(dim=-1, dtype=torch.float32))


def draw(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws a token of each row, with probabilities in proportion to its weight.

    Args:
        weights: [rows, vocab], none negative, some positive in each row.
        generator: of the randomness; None: torch's own.

    Returns:
        [rows] int64; never a token without weight, and some token where weights are NaN.
    """
    sums = weights.cumsum(1, dtype=torch.float64)
    total = sums[:, -1:].contiguous()
    drawn = total * torch.rand(total.shape, dtype=torch.float64, generator=generator)
    last = torch.searchsorted(sums, total)  # where rounding made a drawn number the whole sum
    drawn_ids = torch.searchsorted(sums, drawn, right=True).minimum(last)
    return drawn_ids.clamp_(max=weights.shape[1] - 1).flatten()
