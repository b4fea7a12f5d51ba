"""Losses against slow references over the whole vocabulary."""

import pytest
import torch
from torch import Tensor

from specray.distill.losses import LOSSES, Targets, coarsen, cross_entropy, forward_kl, tvd

VOCAB = 7
TOP_K = 3


def make_case(seed: int = 0) -> tuple[Tensor, Tensor, Targets]:
    """Student's logits, the target's whole distribution, and what is stored of it."""
    torch.manual_seed(seed)
    logits = torch.randn(5, VOCAB, dtype=torch.float64)
    whole = torch.randn(5, VOCAB, dtype=torch.float64).softmax(1)
    probs, ids = whole.topk(TOP_K, dim=1)
    return logits, whole, Targets(whole.argmax(1), ids, probs)


def coarse_pairs(
    logits: Tensor, whole: Tensor, targets: Targets
) -> list[list[tuple[float, float]]]:
    """(target, student) probabilities of each top token and of all others, one by one."""
    student = logits.softmax(1)
    rows = []
    for row, top in enumerate(targets.top.tolist()):
        pairs = [(float(whole[row, token]), float(student[row, token])) for token in top]
        pairs.append((1 - sum(p for p, _ in pairs), 1 - sum(q for _, q in pairs)))
        rows.append(pairs)
    return rows


REFERENCES = {
    "forward_kl": lambda p, q: p * torch.log(torch.tensor(p / q)),
    "reverse_kl": lambda p, q: q * torch.log(torch.tensor(q / p)),
    "tvd": lambda p, q: torch.tensor(abs(p - q) / 2),
}


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_losses_are_those_of_the_top_tokens_and_the_rest(name: str) -> None:
    logits, whole, targets = make_case()

    losses = LOSSES[name](logits, targets)

    for loss, pairs in zip(losses, coarse_pairs(logits, whole, targets), strict=True):
        assert float(loss) == pytest.approx(sum(float(REFERENCES[name](*pair)) for pair in pairs))


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_a_student_that_says_the_same_has_no_loss(name: str) -> None:
    _, whole, targets = make_case()

    assert LOSSES[name](whole.log(), targets).abs().max() < 1e-6


def test_cross_entropy_is_torchs() -> None:
    logits, _, targets = make_case()

    wanted = torch.nn.functional.cross_entropy(logits, targets.tokens, reduction="none")

    assert torch.allclose(cross_entropy(logits, targets), wanted)


def test_what_is_stored_bounds_the_whole_vocabularys_divergences_from_below() -> None:
    logits, whole, targets = make_case(1)
    student = logits.softmax(1)

    assert (forward_kl(logits, targets) <= (whole * (whole / student).log()).sum(1) + 1e-9).all()
    assert (tvd(logits, targets) <= (whole - student).abs().sum(1) / 2 + 1e-9).all()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_tokens_that_the_student_cannot_say_count_as_the_rest(name: str) -> None:
    logits, _, targets = make_case()
    logits.requires_grad_(True)
    lacking = Targets(
        targets.tokens.clone().index_fill_(0, torch.tensor([0]), -1),
        targets.top.clone().index_fill_(1, torch.tensor([1]), -1),
        targets.top_probs,
    )

    losses = LOSSES[name](logits, lacking)
    losses.sum().backward()

    assert torch.isfinite(losses).all()
    assert torch.isfinite(logits.grad).all()
    target = coarsen(logits, lacking).target
    assert torch.equal(target[:, 1], torch.zeros(5, dtype=torch.float64))
    assert torch.allclose(target.sum(1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_training_on_any_loss_finds_the_target(name: str) -> None:
    _, whole, targets = make_case(2)
    logits = torch.zeros_like(whole).requires_grad_(True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        LOSSES[name](logits, targets).sum().backward()
        optimizer.step()

    assert torch.equal(logits.argmax(1), whole.argmax(1))
