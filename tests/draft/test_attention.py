"""Both caches against attention written out."""

import pytest
import torch
from torch import Tensor

from specray.draft.attention import AttentionCache, CachedRow, InPlaceCache
from specray.draft.batch_cache import BatchCache

KV_HEADS, GROUP, DIM = 2, 3, 4
CACHES = [InPlaceCache, BatchCache]


def random_states(*num_tokens: int) -> Tensor:
    return torch.randn(*num_tokens, 2 * KV_HEADS, DIM)


def expected(query: Tensor, states: Tensor) -> Tensor:
    """One query [heads, dim] over states [tokens, 2 * kv_heads, dim], head by head."""
    outs = []
    for head, vector in enumerate(query):
        keys, values = states[:, head // GROUP], states[:, KV_HEADS + head // GROUP]
        outs.append((keys @ vector / DIM**0.5).softmax(0) @ values)
    return torch.cat(outs)


class Row:
    """A session, and what its keys and values should be."""

    def __init__(self, num_cached: int, stop: int) -> None:
        self.states = random_states(num_cached)
        held = torch.full((1, 2 * KV_HEADS, stop + 3, DIM), torch.nan)
        held[0, :, :num_cached] = self.states.transpose(0, 1)
        self.cached = CachedRow(held, num_cached, stop)

    def tail(self, num_queries: int) -> Tensor:
        """A new token and those before it, which come out as they did; padded on the left."""
        self.states = torch.cat((self.states, random_states(1)))
        tail = self.states[-num_queries:]
        return torch.cat((random_states(num_queries - len(tail)), tail))


def run_pass(cache: AttentionCache, rows: list[Row], num_queries: int) -> None:
    """Extends each row by one token, showing `num_queries` of its last ones."""
    states = torch.cat([row.tail(num_queries) for row in rows])
    lengths = [len(row.states) for row in rows]
    positions = torch.tensor([list(range(n - num_queries, n)) for n in lengths])
    queries = torch.randn(len(rows), num_queries, KV_HEADS * GROUP, DIM)
    cache.start_pass(positions, max(lengths))
    out = cache.attend(queries.flatten(0, 1), states, 0).view(len(rows), num_queries, -1)
    assert not out.isnan().any()
    for row, its_positions, its_queries, its_out in zip(rows, positions, queries, out, strict=True):
        for position, query, attended in zip(its_positions, its_queries, its_out, strict=True):
            if position >= 0:
                seen = row.states[: position + 1]
                torch.testing.assert_close(attended, expected(query, seen))


@pytest.mark.parametrize("make_cache", CACHES)
def test_ragged_rows_see_their_own_past(make_cache: type[AttentionCache]) -> None:
    torch.manual_seed(0)
    rows = [Row(7, 10), Row(3, 6), Row(0, 1)]
    cache = make_cache([row.cached for row in rows], GROUP)
    run_pass(cache, rows, num_queries=2)  # the last row is padded
    run_pass(cache, rows[:2], num_queries=1)
    run_pass(cache, rows[:2], num_queries=1)
    cache.store()
    for row in rows:
        stored = row.cached.states[0, :, : row.cached.stop].transpose(0, 1)
        torch.testing.assert_close(stored, row.states)
        assert row.cached.states[:, :, row.cached.stop :].isnan().all()


@pytest.mark.parametrize("make_cache", CACHES)
def test_a_single_row(make_cache: type[AttentionCache]) -> None:
    torch.manual_seed(1)
    row = Row(5, 7)
    cache = make_cache([row.cached], GROUP)
    run_pass(cache, [row], num_queries=1)
    run_pass(cache, [row], num_queries=4)


def test_transformers_read_what_the_pass_may_see() -> None:
    row, short = Row(2, 4), Row(0, 1)
    cache = BatchCache([row.cached, short.cached])
    cache.start_pass(torch.tensor([[2, 3], [-1, 0]]), length=4)
    new = random_states(2, 2)
    keys, values = cache.update(
        new[:, :, :KV_HEADS].transpose(1, 2), new[:, :, KV_HEADS:].transpose(1, 2), layer_idx=0
    )
    assert cache.get_seq_length() == 2
    torch.testing.assert_close(keys[0].transpose(0, 1)[2:], new[0, :, :KV_HEADS])
    torch.testing.assert_close(values[0].transpose(0, 1)[:2], row.states[:, KV_HEADS:])
    torch.testing.assert_close(keys[1].transpose(0, 1)[0], new[1, 1, :KV_HEADS])
    assert keys[1, :, 1:].abs().sum() == values[1, :, 1:].abs().sum() == 0
