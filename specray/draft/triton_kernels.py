"""What stands between a draft's matrix products on a GPU, in few kernels.

A small draft's tensors are so short that a GPU spends as long on beginning a kernel as on running
it, so each of these does what PyTorch takes several for.
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

from specray.draft.addressed_cache import ENTRY

_SHORT_TILE, _LONG_TILE = 16, 64  # queries, times the heads that share a key head, of a program
_COLUMNS, _COLUMN_BYTES = 64, 16384  # that it reads at once, at most, of keys and of values
_PROGRAMS = 256  # two for each processor of a large GPU: few rows' columns are shared out
_MOST_SPLITS = 16
_GATED = 1024  # numbers of a program
_LOWEST = tl.constexpr(-1e30)  # of scores: finite, as -inf less itself is NaN


def prepare(
    device: torch.device, dtype: torch.dtype, num_heads: int, kv_heads: int, dim: int
) -> None:
    """Compiles what attends, for short and long passes of few and of many rows.

    Args:
        device: a GPU.
        dtype: of keys and values.
        num_heads: attention heads.
        kv_heads: of keys and values.
        dim: of a head.

    Raises:
        Exception: Triton's own, of many kinds: no C compiler, too little of the GPU's memory, ...
    """
    num_long = 2 * _SHORT_TILE * kv_heads // num_heads + 1
    for num_rows, num_new in ((1, 1), (_PROGRAMS, 1), (1, num_long)):
        qkv = torch.zeros((num_new, num_heads + 2 * kv_heads, dim), dtype=dtype, device=device)
        positions = torch.arange(num_new, device=device)
        spans = torch.zeros((num_rows, 2), dtype=torch.long, device=device)
        spans[0, 1] = num_new  # of a row that stops before it begins, so that nothing is written
        table = torch.zeros((num_rows, ENTRY), dtype=torch.long, device=device)
        attend(qkv, positions, spans, table, 0, kv_heads, num_new)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The normed tokens, [tokens, hidden].

    Args:
        x: [tokens, hidden], of which each token's numbers lie side by side.
        weight: [hidden] float32.
        epsilon: see `specray.draft.llama_layer.Norm`.
    """
    num_tokens, size = x.shape
    out = x.new_empty((num_tokens, size))
    block = triton.next_power_of_2(size)
    num_warps = max(1, min(16, block // 256))
    _rms_norm[(num_tokens,)](x, x.stride(0), weight, out, epsilon, size, block, num_warps=num_warps)
    return out


def turn(
    qkv: Tensor, num_turned: int, turns: Tensor, weight: Tensor | None, epsilon: float
) -> None:
    """Norms the first heads, if they have a norm, and turns them, in place.

    Args:
        qkv: [tokens, heads, dim], contiguous.
        num_turned: heads that turn.
        turns: [tokens, 1, dim / 2] complex64; see `specray.draft.llama_layer.Rotation`.
        weight: of the norm, [num_turned, dim] float32.
        epsilon: likewise.
    """
    num_tokens, num_heads, dim = qkv.shape
    _turn[(num_tokens, num_turned)](
        qkv,
        torch.view_as_real(turns),
        qkv if weight is None else weight,
        epsilon,
        num_heads,
        dim // 2,
        triton.next_power_of_2(dim // 2),
        weight is not None,
        num_warps=1,
    )


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, [tokens, size], of both side by side, [tokens, 2 * size]."""
    size = gate_up.shape[1] // 2
    out = gate_up.new_empty((len(gate_up), size))
    _gated[(len(out), triton.cdiv(size, _GATED))](gate_up, out, size, _GATED)
    return out


def attend(
    qkv: Tensor,
    positions: Tensor,
    spans: Tensor,
    table: Tensor,
    layer: int,
    kv_heads: int,
    most_new: int,
) -> Tensor:
    """See `specray.draft.addressed_cache.Attend`."""
    num_tokens, num_states, dim = qkv.shape
    num_heads = num_states - 2 * kv_heads
    group = num_heads // kv_heads
    tile = _SHORT_TILE if most_new * group <= 2 * _SHORT_TILE else _LONG_TILE
    num_tiles = triton.cdiv(most_new * group, tile)
    num_splits = 1
    if tile == _SHORT_TILE:
        num_splits = _PROGRAMS // (len(table) * kv_heads * num_tiles)
        num_splits = max(1, min(num_splits, _MOST_SPLITS))
    out = qkv.new_empty((num_tokens, num_heads * dim))
    parts = sums = out
    if num_splits > 1:
        shape = (num_tokens, num_heads, num_splits)
        parts = qkv.new_empty((*shape, dim), dtype=torch.float32)
        sums = qkv.new_empty((*shape, 2), dtype=torch.float32)
    block = max(16, triton.next_power_of_2(dim))
    columns = max(16, min(_COLUMNS, _COLUMN_BYTES // (block * qkv.itemsize)))
    _attend[(len(table), kv_heads, num_tiles * num_splits)](
        qkv,
        positions,
        spans,
        table,
        out,
        parts,
        sums,
        layer,
        num_splits,
        dim**-0.5,
        kv_heads,
        group,
        dim,
        block,
        tile,
        columns,
        num_splits > 1,
    )
    if num_splits > 1:
        _join[(num_tokens, num_heads)](
            parts, sums, out, num_splits, num_heads, dim, block, _MOST_SPLITS, num_warps=1
        )
    return out


@triton.jit
def _rms_norm(x, stride, weight, out, epsilon, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(x + token * stride + at, inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + at, inside, other=0.0)
    normed = row * tl.rsqrt(tl.sum(row * row) / SIZE + epsilon) * weights
    tl.store(out + token * SIZE + at, normed.to(out.dtype.element_ty), inside)


@triton.jit
def _turn(
    qkv,
    turns,
    weight,
    epsilon,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, BLOCK)
    inside = pair < HALF
    numbers = qkv + (token * HEADS + head) * 2 * HALF + 2 * pair
    a = tl.load(numbers, inside, other=0.0).to(tl.float32)
    b = tl.load(numbers + 1, inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b) / (2 * HALF) + epsilon)
        weights = weight + head * 2 * HALF + 2 * pair
        a *= scale * tl.load(weights, inside, other=0.0)
        b *= scale * tl.load(weights + 1, inside, other=0.0)
    turned = turns + (token * HALF + pair) * 2
    cosine = tl.load(turned, inside, other=0.0)
    sine = tl.load(turned + 1, inside, other=0.0)
    tl.store(numbers, (a * cosine - b * sine).to(qkv.dtype.element_ty), inside)
    tl.store(numbers + 1, (a * sine + b * cosine).to(qkv.dtype.element_ty), inside)


@triton.jit
def _gated(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    token = tl.program_id(0).to(tl.int64)
    gate = tl.load(gate_up + token * 2 * SIZE + at, inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * 2 * SIZE + SIZE + at, inside, other=0.0).to(tl.float32)
    tl.store(
        out + token * SIZE + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), inside
    )


@triton.jit
def _fold(
    query,
    seen,
    weighed,
    top,
    total,
    keys,
    values,
    stride,
    first,
    end,
    scale,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Attends to the columns from `first` to `end`, `stride` numbers apart, as far as `seen`."""
    dims = tl.arange(0, BLOCK_DIM)
    for begin in range(first, end, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        inside = (columns[:, None] < end) & (dims[None, :] < DIM)
        at = columns[:, None].to(tl.int64) * stride + dims[None, :]
        key = tl.load(keys + at, inside, other=0.0)
        value = tl.load(values + at, inside, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        is_seen = (columns[None, :] < end) & (columns[None, :] <= seen[:, None])
        scores = tl.where(is_seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new_top[:, None])
        fading = tl.exp(top - new_top)
        total = total * fading + tl.sum(weights, 1)
        weighed = weighed * fading[:, None]
        weighed += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        top = new_top
    return weighed, top, total


@triton.jit(do_not_specialize=["layer", "num_splits"])
def _attend(
    qkv,
    positions,
    spans,
    table,
    out,
    parts,
    sums,
    layer,
    num_splits,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """A few queries of a row and key head, and a part of the columns."""
    HEADS: tl.constexpr = KV_HEADS * GROUP
    STATES: tl.constexpr = HEADS + 2 * KV_HEADS
    row, kv_head = tl.program_id(0), tl.program_id(1)
    tile, split = tl.program_id(2) // num_splits, tl.program_id(2) % num_splits
    begin = tl.load(spans + 2 * row).to(tl.int32)
    num_new = tl.load(spans + 2 * row + 1).to(tl.int32) - begin
    first_query = tile * TILE
    if first_query >= num_new * GROUP:
        return
    position = tl.load(positions + begin).to(tl.int32)
    entry = table + 6 * row
    states, tail = tl.load(entry), tl.load(entry + 2)
    room, tail_room = tl.load(entry + 1), tl.load(entry + 3)
    num_shared = tl.load(entry + 4).to(tl.int32)
    # Beyond its stop a row has no memory; what it computes there is for nobody.
    is_real = position + num_new <= tl.load(entry + 5)
    num_cached = tl.where(is_real, position, 0)

    pointer: tl.constexpr = tl.pointer_type(qkv.dtype.element_ty)
    plane = (layer * 2 * KV_HEADS + kv_head).to(tl.int64)
    keys = tl.multiple_of(states.to(pointer), 16) + plane * room * DIM
    values = keys + KV_HEADS * room * DIM
    own_keys = tl.multiple_of(tail.to(pointer), 16) + (plane * tail_room - num_shared) * DIM
    own_values = own_keys + KV_HEADS * tail_room * DIM
    new_keys = qkv + (begin.to(tl.int64) * STATES + HEADS + kv_head) * DIM
    new_values = new_keys + KV_HEADS * DIM

    dims = tl.arange(0, BLOCK_DIM)
    flat = first_query + tl.arange(0, TILE)
    index, head = flat // GROUP, kv_head * GROUP + flat % GROUP
    is_query = index < num_new
    inside = is_query[:, None] & (dims[None, :] < DIM)
    token = (begin + index).to(tl.int64)
    at = (token * STATES + head)[:, None] * DIM + dims[None, :]
    query = tl.load(qkv + at, inside, other=0.0)
    weighed = tl.zeros((TILE, BLOCK_DIM), tl.float32)
    top = tl.full((TILE,), _LOWEST, tl.float32)
    total = tl.zeros((TILE,), tl.float32)

    chunk = tl.cdiv(tl.cdiv(num_cached, num_splits), COLUMNS) * COLUMNS
    first, end = split * chunk, tl.minimum((split + 1) * chunk, num_cached)
    seen = position + index  # all that is cached, and of the new ones its own and those before
    weighed, top, total = _fold(
        query, seen, weighed, top, total, keys, values, DIM,
        first, tl.minimum(end, num_shared), scale, DIM, BLOCK_DIM, COLUMNS,
    )  # fmt: skip
    weighed, top, total = _fold(
        query, seen, weighed, top, total, own_keys, own_values, DIM,
        tl.maximum(first, num_shared), end, scale, DIM, BLOCK_DIM, COLUMNS,
    )  # fmt: skip
    if split == 0:
        last = tl.minimum(num_new, (first_query + TILE - 1) // GROUP + 1)
        weighed, top, total = _fold(
            query, index, weighed, top, total, new_keys, new_values, STATES * DIM,
            0, last, scale, DIM, BLOCK_DIM, COLUMNS,
        )  # fmt: skip
    if IS_SPLIT:
        part = (token * HEADS + head) * num_splits + split
        tl.store(parts + part[:, None] * DIM + dims[None, :], weighed, inside)
        tl.store(sums + part * 2, top, is_query)
        tl.store(sums + part * 2 + 1, total, is_query)
    else:
        weighed = weighed / total[:, None]
        at = (token * HEADS + head)[:, None] * DIM + dims[None, :]
        tl.store(out + at, weighed.to(out.dtype.element_ty), inside)

    if (tile == 0) & (split == 0) & is_real:  # none but these programs need what is written here
        if position >= num_shared:
            keys, values = own_keys, own_values
        for start in range(0, num_new, COLUMNS):
            new = start + tl.arange(0, COLUMNS)
            is_new = (new[:, None] < num_new) & (dims[None, :] < DIM)
            source = new[:, None].to(tl.int64) * STATES * DIM + dims[None, :]
            target = (position + new[:, None]).to(tl.int64) * DIM + dims[None, :]
            tl.store(keys + target, tl.load(new_keys + source, is_new), is_new)
            tl.store(values + target, tl.load(new_values + source, is_new), is_new)


@triton.jit(do_not_specialize=["num_splits"])
def _join(
    parts,
    sums,
    out,
    num_splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
):
    """What all splits of a token's head attended to."""
    head = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split, dims = tl.arange(0, MOST_SPLITS), tl.arange(0, BLOCK_DIM)
    part, is_split = head * num_splits + split, split < num_splits
    top = tl.load(sums + part * 2, is_split, other=_LOWEST)
    weights = tl.where(is_split, tl.exp(top - tl.max(top, 0)), 0.0)
    total = tl.sum(weights * tl.load(sums + part * 2 + 1, is_split, other=0.0), 0)
    inside = is_split[:, None] & (dims[None, :] < DIM)
    weighed = tl.load(parts + part[:, None] * DIM + dims[None, :], inside, other=0.0)
    joined = tl.sum(weighed * weights[:, None], 0) / total
    tl.store(out + head * DIM + dims, joined.to(out.dtype.element_ty), dims < DIM)
