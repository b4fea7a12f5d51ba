from unittest.mock import Mock

import pytest
import torch

from specray.draft.kv_pool import BLOCK_TOKENS, KvLayout, KvPool


def pool_of(num_blocks: int) -> KvPool:
    layout = KvLayout(num_layers=1, num_heads=1, head_dim=2)
    return KvPool(layout, num_blocks * BLOCK_TOKENS, torch.float32, torch.device("cpu"))


def test_growing_keeps_what_was_there() -> None:
    pool = pool_of(8)
    states = pool.grow(pool.empty(), 3)
    states[:, :, :3] = torch.tensor([1.0, 2.0, 3.0])[:, None]
    grown = pool.grow(states, 5 * BLOCK_TOKENS)
    assert grown.shape[2] >= 5 * BLOCK_TOKENS
    assert grown[0, 1, :3, 0].tolist() == [1, 2, 3]
    assert pool.grow(grown, 4) is grown


def test_sessions_share_a_budget() -> None:
    pool = pool_of(3)
    first = pool.grow(pool.empty(), 2 * BLOCK_TOKENS)
    assert pool.grow(pool.empty(), BLOCK_TOKENS + 1) is None
    second = pool.grow(pool.empty(), BLOCK_TOKENS)
    assert pool.grow(second, BLOCK_TOKENS + 1) is None
    pool.release(first)
    assert pool.grow(second, 3 * BLOCK_TOKENS).shape[2] == 3 * BLOCK_TOKENS
    assert pool.grow(pool.empty(), 1) is None


def test_a_session_that_grows_gets_some_to_spare_while_there_is() -> None:
    pool = pool_of(12)
    first = pool.grow(pool.empty(), 8 * BLOCK_TOKENS)
    assert first.shape[2] == 8 * BLOCK_TOKENS
    first = pool.grow(first, 8 * BLOCK_TOKENS + 1)
    assert first.shape[2] > 9 * BLOCK_TOKENS
    pool.release(first)
    full = pool.grow(pool.empty(), 11 * BLOCK_TOKENS)
    assert pool.grow(full, 12 * BLOCK_TOKENS).shape[2] == pool.capacity


def test_what_is_short_is_what_has_to_be_released() -> None:
    pool = pool_of(3)
    first = pool.grow(pool.empty(), 2 * BLOCK_TOKENS)

    assert pool.shortage(pool.empty(), BLOCK_TOKENS) == 0
    assert pool.shortage(pool.empty(), BLOCK_TOKENS + 1) == BLOCK_TOKENS
    assert pool.shortage(first, 4 * BLOCK_TOKENS) == BLOCK_TOKENS


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), MemoryError()])
def test_where_the_device_has_less_than_the_budget_nothing_is_booked(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pool = pool_of(4)
    held = pool.grow(pool.empty(), BLOCK_TOKENS)
    with monkeypatch.context() as short:
        short.setattr(torch, "empty", Mock(side_effect=error))
        assert pool.grow(held, 2 * BLOCK_TOKENS) is None

    assert pool.grow(pool.empty(), 3 * BLOCK_TOKENS) is not None


def test_other_faults_of_the_device_are_not_taken_for_want_of_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of(4)
    monkeypatch.setattr(torch, "empty", Mock(side_effect=RuntimeError("illegal access")))
    with pytest.raises(RuntimeError, match="illegal"):
        pool.grow(Mock(shape=(1, 2, BLOCK_TOKENS, 2)), 2 * BLOCK_TOKENS)
