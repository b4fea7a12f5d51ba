import numpy as np
import pytest
import torch
from scipy import stats

from specray.distill.sampling_rows import Row, draw, uniforms

VOCAB = 600  # more than two blocks, and no multiple of one


def make_logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def draw_many(count: int, temperature: float, top_p: float) -> np.ndarray:
    logits = make_logits().repeat(count, 1)
    numbers = (torch.arange(count) + 0.5) / count  # all parts of [0, 1) alike
    row = Row(torch.full((count,), temperature), torch.full((count,), top_p), numbers)
    return draw(logits, row, 0).tokens.numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_drawn_with_their_probabilities(temperature: float) -> None:
    probs = (make_logits().double() / temperature).softmax(0).numpy()

    found = np.bincount(draw_many(4000, temperature, 1.0), minlength=VOCAB) / 4000

    assert np.abs(found - probs).max() < 2e-3


def test_a_nucleus_is_the_smallest_set_of_its_mass() -> None:
    probs = make_logits().double().softmax(0).numpy()
    order = np.argsort(-probs)
    size = int(np.searchsorted(probs[order].cumsum(), 0.7)) + 1
    wanted = np.zeros(VOCAB)
    wanted[order[:size]] = probs[order[:size]] / probs[order[:size]].sum()

    found = np.bincount(draw_many(4000, 1.0, 0.7), minlength=VOCAB) / 4000

    assert np.abs(found - wanted).max() < 2e-3


def test_temperature_zero_is_greedy() -> None:
    assert set(draw_many(5, 0.0, 1.0)) == {int(make_logits().argmax())}


def test_greedy_nucleus_and_plain_rows_may_be_mixed() -> None:
    logits = torch.stack([make_logits(seed) for seed in range(4)])
    row = Row(
        torch.tensor([0.0, 1.0, 1.0, 0.5]),
        torch.tensor([1.0, 0.6, 1.0, 1.0]),
        torch.tensor([0.9, 0.4, 0.7, 0.1]),
    )

    together = draw(logits.clone(), row, 0).tokens
    alone = [
        draw(logits[[i]].clone(), Row(*(field[[i]] for field in row)), 0).tokens[0]
        for i in range(4)
    ]

    assert together.tolist() == [int(token) for token in alone]


def test_the_top_tokens_logprobs_are_those_of_temperature_one() -> None:
    logits = make_logits()[None]
    row = Row(torch.tensor([0.3]), torch.tensor([1.0]), torch.tensor([0.5]))

    drawn = draw(logits.clone(), row, 5)

    wanted = logits.log_softmax(1).topk(5, dim=1)
    assert torch.equal(drawn.top_ids, wanted.indices)
    assert torch.allclose(drawn.top_logprobs, wanted.values, atol=1e-5)


def test_a_rows_numbers_depend_on_its_seed_only() -> None:
    assert torch.equal(uniforms([7, 8], 5)[1], uniforms([8], 5)[0])
    assert stats.kstest(uniforms(list(range(200)), 3).flatten().numpy(), "uniform").pvalue > 0.01


def test_the_largest_number_does_not_leave_the_vocabulary() -> None:
    row = Row(torch.ones(1), torch.ones(1), torch.tensor([1 - 2**-24]))

    token = int(draw(make_logits()[None], row, 0).tokens)

    assert 0 <= token < VOCAB
