"""The draw of tokens on a GPU, in two kernels; `specray.sampling.truncation` is the reference."""

import torch
import triton
from torch import Tensor
from triton import language as tl

from specray.sampling.truncation import BatchSampling

_COLUMNS = 1024  # of which a program finds the likeliest
_MOST_BLOCKS = 32  # of a row; of large vocabularies each has more columns


def draw(
    logits: Tensor,
    sampling: BatchSampling,
    support: int,
    generator: torch.Generator,
    names: Tensor | None,
) -> Tensor:
    """See `specray.draft.decoding.Draw`."""
    num_rows, num_columns = logits.shape
    columns = max(_COLUMNS, triton.next_power_of_2(triton.cdiv(num_columns, _MOST_BLOCKS)))
    num_blocks = triton.cdiv(num_columns, columns)
    support = min(support, num_columns)
    kept = max(2, triton.next_power_of_2(support))  # Triton finds no single largest
    keys = torch.empty((num_rows, num_blocks, kept), dtype=torch.long, device=logits.device)
    masses = logits.new_empty((num_rows, num_blocks, 2), dtype=torch.float32)
    _likeliest[(num_rows, num_blocks)](
        logits, sampling.temperature, keys, masses, num_columns, columns, kept, num_warps=8
    )
    # An exponential race: see `specray.sampling.truncation.draw_from`.
    race = torch.empty((num_rows, kept), dtype=torch.float64, device=logits.device)
    race.exponential_(generator=generator)
    width = 1 + 2 * support if sampling.has_sampled else 1
    out = torch.empty((num_rows, width), dtype=torch.int32, device=logits.device)
    _draw[(num_rows,)](
        keys,
        masses,
        race,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        keys if names is None else names,
        out,
        num_columns,
        num_blocks,
        triton.next_power_of_2(num_blocks),
        support,
        kept,
        sampling.has_sampled,
        names is not None,
    )
    return out


@triton.jit
def _likeliest(logits, temperatures, keys, masses, size, COLUMNS: tl.constexpr, KEPT: tl.constexpr):
    """The largest logits of a block of columns, largest first, and the mass of all of them."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < size
    logit = tl.load(logits + row * size + column, inside, other=float("-inf")).to(tl.float32)
    top = tl.max(logit, 0)
    total = tl.sum(tl.exp((logit - top) / temperature), 0)
    total = tl.where(top == float("-inf"), 0.0, total)  # of tokens that are ruled out, all of them
    place = row * tl.num_programs(1) + block
    tl.store(masses + place * 2, top / temperature)
    tl.store(masses + place * 2 + 1, total)
    # Ordered as the logits are, and of equal ones the first column first.
    bits = logit.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = (bits.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)
    key = tl.where(inside, key, -0x8000000000000000)
    tl.store(keys + place * KEPT + tl.arange(0, KEPT), tl.topk(key, KEPT))


@triton.jit
def _draw(
    keys,
    masses,
    race,
    temperatures,
    top_ks,
    top_ps,
    names,
    out,
    size,
    num_blocks,
    BLOCKS: tl.constexpr,
    SUPPORT: tl.constexpr,
    KEPT: tl.constexpr,
    HAS_DISTRIBUTIONS: tl.constexpr,
    HAS_NAMES: tl.constexpr,
):
    """A row's distribution, a token of it, all laid out as `Draw` says."""
    row = tl.program_id(0).to(tl.int64)
    first = row * num_blocks
    at = tl.arange(0, BLOCKS * KEPT)
    key = tl.load(keys + first * KEPT + at, at < num_blocks * KEPT, other=-0x8000000000000000)
    key = tl.topk(key, KEPT)
    column = 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
    bits = (key >> 32).to(tl.int32)
    logit = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    rank = tl.arange(0, KEPT)
    given = tl.load(temperatures + row)
    scaled = logit / tl.where(given > 0, given, 1.0)
    top = tl.max(scaled, 0)

    top_k = tl.load(top_ks + row)
    top_k = tl.where(top_k > 0, top_k, size)
    is_kept = (rank < top_k) & (rank < SUPPORT)
    weight = tl.where(is_kept, tl.exp(scaled - top), 0.0)
    block = tl.arange(0, BLOCKS)
    is_block = block < num_blocks
    tops = tl.load(masses + (first + block) * 2, is_block, other=float("-inf"))
    totals = tl.load(masses + (first + block) * 2 + 1, is_block, other=0.0)
    mass = tl.where(top_k <= SUPPORT, tl.sum(weight, 0), tl.sum(totals * tl.exp(tops - top), 0))
    probability = weight / mass
    mass_before = tl.cumsum(probability, 0) - probability
    is_kept = (mass_before < tl.load(top_ps + row)) | (rank == 0)
    probability = tl.where(is_kept, probability, 0.0)
    probability = probability / tl.sum(probability, 0)

    drawn = tl.argmax(probability / tl.load(race + row * KEPT + rank), 0)
    drawn = tl.where(given > 0, tl.minimum(drawn, SUPPORT - 1), 0)  # also where all is NaN
    if HAS_NAMES:
        column = tl.load(names + column, column < size, other=0).to(tl.int32)
    target = out + row * (1 + 2 * SUPPORT if HAS_DISTRIBUTIONS else 1)
    tl.store(target, tl.sum(tl.where(rank == drawn, column, 0), 0))
    if HAS_DISTRIBUTIONS:
        inside = rank < SUPPORT
        tl.store(target + 1 + rank, tl.where(probability > 0, column, 0), inside)
        tl.store(target + 1 + SUPPORT + rank, probability.to(tl.int32, bitcast=True), inside)
