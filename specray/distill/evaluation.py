"""How well the student does on held-out answers, by what was stored of the target."""

from collections import defaultdict
from typing import NamedTuple

import torch

from specray.distill.learner import Learner, Texts
from specray.distill.losses import LOSSES, Targets

_MOST_ANSWERS = 40  # enough for a curve; the report takes all of them


class Figures(NamedTuple):
    """Means over answer tokens."""

    loss: float  # forward KL, nats
    greedy_agreement: float  # with the target's first choice, in greedy answers
    sampled_overlap: float  # sum of min(p, q) in sampled answers: accepted at temperature 1


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # without gradients layers would be compiled once more
def evaluate(learner: Learner, texts: Texts) -> Figures:
    """Runs the student over held-out answers: all of them, or every n-th where they are many."""
    sums: dict[str, float] = defaultdict(float)
    stride = -(-len(texts.answers) // _MOST_ANSWERS)
    if stride > 1:
        stride |= 1  # odd: greedy and sampled answers take turns
    for index in range(0, len(texts.answers), stride):
        answer = texts.answers[index]
        batch = learner.batch(texts, [index])
        logits = learner.logits(learner.hidden(texts, [index], batch))
        targets = Targets(*(field.to(logits.device) for field in batch.targets))
        mode = "greedy" if answer.is_greedy else "sampled"
        sums[mode] += len(logits)
        sums["loss"] += float(LOSSES["forward_kl"](logits, targets).sum())
        sums[f"{mode} agreed"] += float((logits.argmax(1) == targets.top[:, 0]).sum())
        sums[f"{mode} overlap"] += float((1 - LOSSES["tvd"](logits, targets)).sum())
    return Figures(
        sums["loss"] / max(1, sums["greedy"] + sums["sampled"]),
        sums["greedy agreed"] / max(1, sums["greedy"]),
        sums["sampled overlap"] / max(1, sums["sampled"]),
    )
