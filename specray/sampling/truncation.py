"""Draft distributions cut to their most likely tokens: small enough to ship, exact to verify.

Speculative sampling is exact for any draft distribution as long as the token was drawn from the
one that is shipped (Leviathan et al., arXiv 2211.17192). So the draft keeps its `support` most
likely tokens, renormalises, draws from that, and ships ids and probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from specray.types import SamplingSettings


@dataclass(frozen=True, slots=True)
class BatchSampling:
    """The sampling settings of a batch's rows, as tensors on the draft's device."""

    temperature: Tensor  # [batch] float32; 0 is greedy
    top_k: Tensor  # [batch] int64; 0 keeps every token
    top_p: Tensor  # [batch] float32
    has_sampled: bool  # whether any row is not greedy; kept here to spare a device round trip

    @classmethod
    def of(cls, rows: Sequence[SamplingSettings], device: torch.device) -> "BatchSampling":
        """Settings of `rows`, in their order."""
        return cls(
            torch.tensor([row.temperature for row in rows], device=device),
            torch.tensor([row.top_k for row in rows], device=device),
            torch.tensor([row.top_p for row in rows], device=device),
            any(not row.is_greedy for row in rows),
        )

    def first(self, num_rows: int) -> "BatchSampling":
        """The settings of the first `num_rows` rows."""
        return BatchSampling(
            self.temperature[:num_rows],
            self.top_k[:num_rows],
            self.top_p[:num_rows],
            self.has_sampled,
        )

    def with_distributions(self) -> "BatchSampling":
        """The same, for a draw that shows the distributions of greedy rows too."""
        return replace(self, has_sampled=True)


class Truncated(NamedTuple):
    """Distributions over their own most likely tokens; rows sum to 1, unused columns are 0."""

    token_ids: Tensor  # [batch, support] int64, most likely first
    probabilities: Tensor  # [batch, support] float32


class Drawn(NamedTuple):
    """One token per row, and what it was drawn from."""

    token_ids: Tensor  # [batch] int64
    distributions: Truncated | None  # None when all rows are greedy

    def named(self, token_ids: Tensor) -> "Drawn":
        """The same for logits whose columns stand for `token_ids` [columns]."""
        if self.distributions is None:
            return Drawn(token_ids[self.token_ids], None)
        columns, probabilities = self.distributions
        supports = token_ids[columns].masked_fill(probabilities == 0, 0)
        return Drawn(token_ids[self.token_ids], Truncated(supports, probabilities))


def truncate(logits: Tensor, sampling: BatchSampling, support: int) -> Truncated:
    """Filters logits as vLLM's target does and keeps at most `support` tokens.

    Temperature, then top-k, then top-p on what top-k left (vllm/v1/sample/ops/topk_topp_sampler).
    A token stays while the probability of all likelier ones is below top_p. Where top-k lies
    beyond `support`, top-p weighs against the whole vocabulary: q may differ from the target's
    filter. Greedy rows come out as at temperature 1.

    Args:
        logits: [batch, vocab], any float type.
        sampling: the rows' settings.
        support: most tokens a row keeps.
    """
    temperature = sampling.temperature.where(sampling.temperature > 0, 1.0)
    scaled = logits.float() / temperature.unsqueeze(1)
    kept, token_ids = scaled.topk(min(support, scaled.shape[1]), dim=1)
    probabilities = _filter(kept, scaled, sampling)
    probabilities = probabilities / probabilities.sum(dim=1, keepdim=True)
    return Truncated(token_ids.masked_fill(probabilities == 0, 0), probabilities)


def _filter(kept: Tensor, scaled: Tensor, sampling: BatchSampling) -> Tensor:
    """Probabilities of the `kept` logits [batch, support], 0 where top-k or top-p drops them."""
    num_kept = kept.shape[1]
    top_k = sampling.top_k.where(sampling.top_k > 0, scaled.shape[1]).unsqueeze(1)
    in_top_k = torch.arange(num_kept, device=kept.device) < top_k
    mass_of_kept = kept.masked_fill(~in_top_k, -torch.inf).logsumexp(dim=1, keepdim=True)
    mass_of_all = scaled.logsumexp(dim=1, keepdim=True)
    mass = mass_of_kept.where(top_k <= num_kept, mass_of_all)
    probabilities = (kept - mass).exp().masked_fill(~in_top_k, 0.0)
    mass_before = probabilities.cumsum(dim=1) - probabilities
    is_kept = mass_before < sampling.top_p.unsqueeze(1)
    is_kept[:, 0] = True
    return probabilities.masked_fill(~is_kept, 0.0)


def draw(
    logits: Tensor, sampling: BatchSampling, support: int, generator: torch.Generator
) -> Drawn:
    """Picks a token per row: the most likely one for greedy rows, else a draw.

    Args:
        logits: [batch, vocab].
        sampling: the rows' settings.
        support: most tokens a distribution keeps.
        generator: source of the randomness, on the logits' device.
    """
    greedy_ids = logits.argmax(dim=1)
    if not sampling.has_sampled:
        return Drawn(greedy_ids, None)
    distributions = truncate(logits, sampling, support)
    sampled_ids = draw_from(distributions, generator)
    return Drawn(greedy_ids.where(sampling.temperature == 0, sampled_ids), distributions)


def draw_from(distributions: Truncated, generator: torch.Generator) -> Tensor:
    """One token id per row, [batch] int64, without a device round trip.

    An exponential race: the smallest of Exp(1) / p over the columns is at column i with
    probability p_i.
    """
    probabilities = distributions.probabilities
    num_rows, support = probabilities.shape
    race = make_race(num_rows, support, generator)
    column = (probabilities / race).argmax(dim=1, keepdim=True)
    return distributions.token_ids.gather(1, column).squeeze(1)


def make_race(num_rows: int, support: int, generator: torch.Generator) -> Tensor:
    """Numbers from Exp(1), [num_rows, support] float64, on the generator's device."""
    race = torch.empty((num_rows, support), dtype=torch.float64, device=generator.device)
    return race.exponential_(generator=generator)
