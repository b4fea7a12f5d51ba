import torch

from specray.draft.kv_pool import BLOCK_TOKENS, KvLayout, KvPool


def pool_of(num_blocks: int) -> KvPool:
    layout = KvLayout(num_layers=1, num_heads=1, head_dim=2)
    return KvPool(layout, num_blocks * BLOCK_TOKENS, torch.float32, torch.device("cpu"))


def test_sessions_share_no_slot_whoever_came_and_went() -> None:
    pool, first, second, third = pool_of(4), [], [], []
    assert pool.grow(first, BLOCK_TOKENS)
    assert pool.grow(second, 2 * BLOCK_TOKENS)
    pool.release(first)
    assert pool.grow(third, BLOCK_TOKENS + 1)
    slots = pool.slots(second, 0, 2 * BLOCK_TOKENS) + pool.slots(third, 0, 2 * BLOCK_TOKENS)
    assert len(set(slots)) == 4 * BLOCK_TOKENS
    assert min(slots) == BLOCK_TOKENS  # block 0 is nobody's
    assert max(slots) < pool.kv.shape[1]


def test_growing_takes_all_or_nothing() -> None:
    pool, first, second = pool_of(2), [], []
    assert pool.grow(first, BLOCK_TOKENS)
    assert not pool.grow(second, BLOCK_TOKENS + 1)
    assert second == []
    assert pool.grow(second, BLOCK_TOKENS)
    assert pool.grow(second, 1)  # fits already
    assert len(second) == 1


def test_released_memory_is_wiped() -> None:
    pool, blocks = pool_of(1), []
    pool.grow(blocks, BLOCK_TOKENS)
    pool.kv[:, pool.slots(blocks, 0, 3)] = torch.nan
    pool.release(blocks)
    assert not pool.kv.isnan().any()
