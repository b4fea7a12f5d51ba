"""The compiled draw against the one in PyTorch's operations, on the same random numbers."""

import numpy as np
import pytest
import torch

from specray.draft import compiled_draw
from specray.draft.decoding import Decoded, draw_by_torch, unpacked
from specray.sampling.truncation import BatchSampling
from specray.types import SamplingSettings

CPU = torch.device("cpu")
GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(1.0)
ROWS = [
    GREEDY,
    SAMPLED,
    SamplingSettings(0.7, top_k=5),
    SamplingSettings(1.3, top_p=0.9),
    SamplingSettings(0.5, 40, 0.8),
    SamplingSettings(1.0, top_k=1),
    SamplingSettings(2.0, top_p=0.05),
    SamplingSettings(1.0, 7, 0.99),
    SamplingSettings(1e-4),
]


def compiled(logits: torch.Tensor, rows: list[SamplingSettings], support: int) -> Decoded:
    sampling = BatchSampling.of(rows, CPU)
    generator = torch.Generator().manual_seed(0)
    return unpacked([compiled_draw.draw(logits, sampling, support, generator, None)])


@pytest.mark.parametrize(
    ("num_columns", "support"), [(50, 8), (50, 64), (50, 1), (1, 4), (3000, 32), (2500, 12)]
)
@pytest.mark.parametrize("is_named", [False, True])
def test_draws_are_those_of_pytorch(num_columns: int, support: int, *, is_named: bool) -> None:
    numbers = torch.Generator().manual_seed(num_columns)
    logits = 3 * torch.randn(len(ROWS), num_columns, generator=numbers)
    names = torch.randperm(2 * num_columns, generator=numbers)[:num_columns] if is_named else None
    for sampling in (
        BatchSampling.of(ROWS, CPU),
        BatchSampling.of([GREEDY] * len(ROWS), CPU),  # without distributions
        BatchSampling.of([GREEDY] * len(ROWS), CPU).with_distributions(),
    ):
        ours, theirs = (
            unpacked([draw(logits, sampling, support, torch.Generator().manual_seed(3), names)])
            for draw in (compiled_draw.draw, draw_by_torch)
        )
        np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=2e-5)
        is_sure = theirs.probabilities > 1e-5  # the end of a distribution is a matter of rounding
        assert ours.supports[is_sure].tolist() == theirs.supports[is_sure].tolist()
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()


def test_logits_of_16_bits_are_drawn_from_as_wide_ones() -> None:
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    ours, wide = (compiled(x, [GREEDY, SAMPLED], 8) for x in (logits, logits.float()))
    assert ours.supports.tolist() == wide.supports.tolist()
    assert ours.probabilities.tolist() == wide.probabilities.tolist()


def test_rows_need_not_lie_side_by_side() -> None:
    logits = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    ours, copied = (compiled(x, [GREEDY, SAMPLED], 8) for x in (logits.T, logits.T.contiguous()))
    assert ours.supports.tolist() == copied.supports.tolist()
    assert ours.token_ids.tolist() == copied.token_ids.tolist()


def test_the_random_numbers_go_on_as_pytorchs() -> None:
    """So that which of them draws changes nothing of what is drawn later."""
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    for rows in ([GREEDY, GREEDY], [GREEDY, SAMPLED]):
        generators = [torch.Generator().manual_seed(5) for _ in range(2)]
        for draw, generator in zip((compiled_draw.draw, draw_by_torch), generators, strict=True):
            draw(logits, BatchSampling.of(rows, CPU), 8, generator, None)
        ours, theirs = (torch.rand(1, generator=generator) for generator in generators)
        assert ours == theirs


def test_the_first_of_equals_is_kept_first() -> None:
    logits = torch.zeros(2, 2500)
    logits[:, 1100:2200] = 1.0
    drawn = compiled(logits, [GREEDY, SAMPLED], 8)
    assert drawn.token_ids[0] == 1100
    assert drawn.supports[:, 0].tolist() == [list(range(1100, 1108))] * 2


def test_unused_columns_hold_token_0_with_probability_0() -> None:
    names = torch.tensor([70, 50, 90])
    generator = torch.Generator()
    sampling = BatchSampling.of([SamplingSettings(1.0, 1)], CPU)
    (row,) = compiled_draw.draw(torch.tensor([[0.0, 9, 5]]), sampling, 3, generator, names)
    assert row[:4].tolist() == [50, 50, 0, 0]
    assert row[4:].view(torch.float32).tolist() == [1.0, 0.0, 0.0]


def test_tokens_that_are_ruled_out_are_never_drawn() -> None:
    logits = torch.full((1, 3000), float("-inf"))
    logits[:, 1500:1503] = torch.tensor([1.0, 3.0, 2.0])
    drawn = compiled(logits, [SAMPLED], 8)
    assert drawn.supports[0, 0].tolist() == [1501, 1502, 1500, 0, 0, 0, 0, 0]
    expected = torch.tensor([3.0, 2.0, 1.0]).softmax(0)
    np.testing.assert_allclose(drawn.probabilities[0, 0, :3], expected, atol=1e-6)


def test_a_broken_drafts_logits_harm_nobody_else() -> None:
    """A draft that computes NaN, or rules out everything, still names tokens of its vocabulary."""
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    expected = compiled(logits, [SAMPLED] * 3, 8)
    nan, infinite = float("nan"), float("inf")
    for columns, broken in [
        (slice(None), nan),
        (slice(7, 8), nan),
        (slice(None), -infinite),
        (slice(None), infinite),
    ]:
        logits[1, columns] = broken
        drawn = compiled(logits, [SAMPLED] * 3, 8)
        assert ((drawn.supports >= 0) & (drawn.supports < 300)).all()
        assert ((drawn.token_ids >= 0) & (drawn.token_ids < 300)).all()
        assert drawn.token_ids[[0, 2]].tolist() == expected.token_ids[[0, 2]].tolist()
