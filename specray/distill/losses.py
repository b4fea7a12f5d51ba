"""How far the student is from the target, from the target's most likely tokens only.

What the target gave to all other tokens is one more token, the *rest*: every loss is exact on that
coarser vocabulary, so it is a lower bound of the loss over the whole one.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_TINY = 1e-6


class Targets(NamedTuple):
    """What the target said at some positions."""

    tokens: Tensor  # [positions], columns of the student's logits; -1 where it has none
    top: Tensor  # [positions, top_k], columns likewise
    top_probs: Tensor  # [positions, top_k]


class Coarse(NamedTuple):
    """Both distributions over the target's top tokens and the rest."""

    target: Tensor  # [positions, top_k + 1]
    student_logprobs: Tensor  # [positions, top_k + 1]


Loss = Callable[[Tensor, Targets], Tensor]  # logits [positions, columns] to [positions]


def coarsen(logits: Tensor, targets: Targets) -> Coarse:
    """Probabilities of the target's top tokens that the student has, and of the rest."""
    logprobs = logits.log_softmax(dim=-1)
    known = targets.top >= 0
    top_logprobs = logprobs.gather(1, targets.top.clamp(min=0))
    student = top_logprobs.exp() * known
    target = targets.top_probs * known
    student_rest = (1 - student.sum(1, keepdim=True)).clamp(min=_TINY)
    target_rest = (1 - target.sum(1, keepdim=True)).clamp(min=_TINY)
    masked = torch.where(known, top_logprobs, 0.0)  # where the target's share is 0 too
    return Coarse(torch.cat((target, target_rest), 1), torch.cat((masked, student_rest.log()), 1))


def forward_kl(logits: Tensor, targets: Targets) -> Tensor:
    """KL(target, student), less what no student can change: it covers all that the target does."""
    coarse = coarsen(logits, targets)
    entropy = torch.xlogy(coarse.target, coarse.target).sum(1)
    return entropy - (coarse.target * coarse.student_logprobs).sum(1)


def reverse_kl(logits: Tensor, targets: Targets) -> Tensor:
    """KL(student, target): it avoids what the target does not do."""
    target, student_logprobs = coarsen(logits, targets)
    known = torch.cat((targets.top >= 0, torch.ones_like(targets.top[:, :1], dtype=torch.bool)), 1)
    student = student_logprobs.exp() * known
    return (student * (student_logprobs - target.clamp(min=_TINY).log())).sum(1)


def tvd(logits: Tensor, targets: Targets) -> Tensor:
    """Total variation: 1 - tvd is the rate at which sampled proposals are accepted."""
    target, student_logprobs = coarsen(logits, targets)
    known = torch.cat((targets.top >= 0, torch.ones_like(targets.top[:, :1], dtype=torch.bool)), 1)
    return 0.5 * (target - student_logprobs.exp() * known).abs().sum(1)


def cross_entropy(logits: Tensor, targets: Targets) -> Tensor:
    """The baseline: the text itself, no distribution. 0 for tokens that the student lacks."""
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, targets.tokens.clamp(min=0)[:, None]).squeeze(1)
    return torch.where(targets.tokens >= 0, -chosen, 0.0)


LOSSES: dict[str, Loss] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "tvd": tvd,
    "cross_entropy": cross_entropy,
}
