import torch

from specray.draft.batch_cache import BatchCache, CachedRow
from specray.draft.kv_pool import KvLayout, KvPool


def test_ragged_rows_are_written_where_they_belong_and_padding_nowhere() -> None:
    layout = KvLayout(num_layers=1, num_heads=1, head_dim=1)
    pool = KvPool(layout, 64, torch.float32, torch.device("cpu"))
    long, short = [1], [2]
    pool.kv[0, pool.slots(long, 0, 2), 0] = torch.tensor([[[10.0]], [[11.0]]])
    cache = BatchCache(pool, [CachedRow(long, 2, 4), CachedRow(short, 0, 1)])
    cache.start_pass(torch.tensor([[2, 3], [-1, 0]]), length=4)
    new = torch.tensor([[12.0, 13.0], [99.0, 20.0]])[:, None, :, None]
    keys, values = cache.update(new, -new, layer_idx=0)
    assert keys[:, 0, :, 0].tolist() == [[10, 11, 12, 13], [20, 0, 0, 0]]
    assert values[:, 0, :, 0].tolist() == [[0, 0, -12, -13], [-20, 0, 0, 0]]
    cache.store()
    assert pool.kv[0, pool.slots(long, 0, 4), 0].flatten().tolist() == [10, 11, 12, 13]
    assert pool.kv[0, pool.slots(short, 0, 2), 0].flatten().tolist() == [20, 0]


def test_a_pass_over_fewer_rows_leaves_the_others_alone() -> None:
    layout = KvLayout(num_layers=1, num_heads=1, head_dim=1)
    pool = KvPool(layout, 64, torch.float32, torch.device("cpu"))
    cache = BatchCache(pool, [CachedRow([1], 0, 2), CachedRow([2], 0, 1)])
    cache.start_pass(torch.tensor([[0], [0]]), length=1)
    cache.update(torch.ones(2, 1, 1, 1), torch.ones(2, 1, 1, 1), 0)
    cache.start_pass(torch.tensor([[1]]), length=2)
    keys, _ = cache.update(torch.full((1, 1, 1, 1), 5.0), torch.ones(1, 1, 1, 1), 0)
    assert keys.flatten().tolist() == [1, 5]
    cache.store()
    assert pool.kv[0, pool.slots([2], 0, 2), 0].flatten().tolist() == [1, 0]
