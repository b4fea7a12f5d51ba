"""What kernels do on a GPU, written out for float32 in a CPU's memory."""

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def attend(
    qkv: Tensor,
    positions: Tensor,
    spans: Tensor,
    table: Tensor,
    layer: int,
    kv_heads: int,
    most_new: int,
) -> Tensor:
    """See `Attend`; what belongs to no row is NaN."""
    numbers, dim = qkv.numpy(), qkv.shape[2]
    num_heads = qkv.shape[1] - 2 * kv_heads
    out = np.full((len(numbers), num_heads, dim), np.nan, np.float32)
    for (begin, end), (states, room, tail, tail_room, num_shared, stop) in zip(
        spans.tolist(), table.tolist(), strict=True
    ):
        assert end - begin <= most_new
        first = int(positions[begin])
        if begin == end or first + end - begin > stop:
            out[begin:end] = 0
            continue
        held = _layer(states, 2 * kv_heads, room, dim, layer)
        own = _layer(tail, 2 * kv_heads, tail_room, dim, layer) if tail else held[:, room:]
        for token, position in enumerate(range(first, first + end - begin), begin):
            target = held[:, position] if position < num_shared else own[:, position - num_shared]
            target[:] = numbers[token, num_heads:]
            seen = np.concatenate((held[:, :num_shared], own), axis=1)[:, : position + 1]
            group = num_heads // kv_heads
            for head, query in enumerate(numbers[token, :num_heads]):
                scores = seen[head // group] @ query / np.sqrt(dim)
                weights = np.exp(scores - scores.max())
                out[token, head] = weights / weights.sum() @ seen[kv_heads + head // group]
    return torch.from_numpy(out).flatten(1)


def _layer(address: int, num_heads: int, room: int, dim: int, layer: int) -> NDArray[Any]:
    size = num_heads * room * dim
    numbers = (ctypes.c_float * size).from_address(address + 4 * size * layer)
    return np.frombuffer(numbers, np.float32).reshape(num_heads, room, dim)
