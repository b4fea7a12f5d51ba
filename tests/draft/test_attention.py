"""Both caches against attention written out."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specray.draft.attention import AttentionCache, CachedRow, NewTokens
from specray.draft.batch_cache import BatchCache
from specray.draft.in_place_cache import InPlaceCache

KV_HEADS, GROUP, DIM = 2, 3, 8
CACHES = [InPlaceCache, BatchCache]


class Row:
    """A session, and what its keys and values should be."""

    def __init__(self, num_cached: int, stop: int) -> None:
        self.states = torch.randn(num_cached, 2 * KV_HEADS, DIM)
        held = torch.full((1, 2 * KV_HEADS, stop + 3, DIM), torch.nan)
        held[0, :, :num_cached] = self.states.transpose(0, 1)
        self.cached = CachedRow(held, num_cached, stop)


def expected(query: Tensor, states: Tensor) -> Tensor:
    """One query [heads, dim] over states [tokens, 2 * kv_heads, dim], head by head."""
    outs = []
    for head, vector in enumerate(query):
        keys, values = states[:, head // GROUP], states[:, KV_HEADS + head // GROUP]
        outs.append((keys @ vector / DIM**0.5).softmax(0) @ values)
    return torch.cat(outs)


def run_pass(cache: AttentionCache, rows: list[Row], counts: Sequence[int]) -> None:
    """Extends each row by some tokens, and compares what they attend to."""
    lengths = [len(row.states) + count for row, count in zip(rows, counts, strict=True)]
    spans = [range(n - count, n) for n, count in zip(lengths, counts, strict=True)]
    positions = torch.tensor([position for span in spans for position in span])
    qkv = torch.randn(len(positions), (GROUP + 2) * KV_HEADS, DIM)
    new = cache.start_pass(NewTokens(torch.arange(len(positions)), positions, counts, lengths))
    is_real = new.positions >= 0
    padded = torch.zeros(len(new.positions), *qkv.shape[1:])
    padded[is_real] = qkv
    assert torch.equal(new.token_ids[is_real], torch.arange(len(positions)))
    assert torch.equal(new.positions[is_real], positions)
    attended = cache.attend(padded, 0)
    assert not attended.isnan().any()
    for row, its_qkv, its_attended in zip(
        rows, qkv.split(counts), attended[is_real].split(counts), strict=True
    ):
        for token, out in zip(its_qkv, its_attended, strict=True):
            row.states = torch.cat((row.states, token[None, -2 * KV_HEADS :]))
            torch.testing.assert_close(
                out, expected(token[: GROUP * KV_HEADS], row.states), rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("make_cache", CACHES)
def test_each_row_sees_its_own_past(make_cache: type[AttentionCache]) -> None:
    torch.manual_seed(0)
    rows = [Row(7, 11), Row(3, 6), Row(0, 1)]
    cache = make_cache([row.cached for row in rows])
    run_pass(cache, rows, [2, 1, 1])
    run_pass(cache, rows[:2], [1, 1])
    run_pass(cache, rows[:2], [1, 1])
    cache.store()
    for row in rows:
        stored = row.cached.states[0, :, : len(row.states)].transpose(0, 1)
        torch.testing.assert_close(stored, row.states)
        assert row.cached.states[:, :, row.cached.stop :].isnan().all()


@pytest.mark.parametrize("make_cache", CACHES)
def test_a_single_row(make_cache: type[AttentionCache]) -> None:
    torch.manual_seed(1)
    row = Row(5, 300)
    cache = make_cache([row.cached])
    run_pass(cache, [row], [1])
    run_pass(cache, [row], [294])


def test_huge_scores_do_not_overflow() -> None:
    row = Row(40, 41)
    row.states *= 1000
    row.cached.states.mul_(1000)
    run_pass(InPlaceCache([row.cached]), [row], [1])


def test_transformers_read_what_the_pass_may_see() -> None:
    row, short = Row(2, 4), Row(0, 1)
    cache = BatchCache([row.cached, short.cached])
    positions = torch.tensor([2, 3, 0])
    padded = cache.start_pass(NewTokens(torch.tensor([7, 8, 9]), positions, [2, 1], [4, 1]))
    assert padded.token_ids.tolist() == [7, 8, 0, 9]
    assert cache.mask[0].tolist() == [[True, True, True, False], [True] * 4]
    assert cache.get_seq_length() == 2
    new = torch.randn(2, 2, 2 * KV_HEADS, DIM)
    keys, values = cache.update(
        new[:, :, :KV_HEADS].transpose(1, 2), new[:, :, KV_HEADS:].transpose(1, 2), layer_idx=0
    )
    torch.testing.assert_close(keys[0].transpose(0, 1)[2:], new[0, :, :KV_HEADS])
    torch.testing.assert_close(values[0].transpose(0, 1)[:2], row.states[:, KV_HEADS:])
    torch.testing.assert_close(keys[1].transpose(0, 1)[0], new[1, 1, :KV_HEADS])
    assert keys[1, :, 1:].abs().sum() == values[1, :, 1:].abs().sum() == 0


def test_the_last_of_each_row() -> None:
    new = NewTokens(torch.tensor([7, 8, 9]), torch.tensor([2, 3, 0]), [2, 1], [4, 1])
    assert new.last(torch.tensor([5, 6, 7])).tolist() == [6, 7]
    following = new.followed_by(torch.tensor([4]))
    assert following.positions.tolist() == [4]
    assert (following.counts, following.lengths) == ([1], [5])
    assert following.last(following.token_ids).tolist() == [4]
