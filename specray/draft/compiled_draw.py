"""The draw of tokens on a CPU, compiled by numba; `specray.sampling.truncation` is the reference.

In PyTorch's operations a few rows of some ten thousand logits take as long as a layer or two. Here
a row is read twice: once for its largest logits, block by block, most of which hold none, and once
for the mass of all.
"""

import math

import numba
import torch
from numba import float32
from torch import Tensor

from specray.draft.kernels import OPTIONS, Array, exp
from specray.sampling.truncation import BatchSampling, make_race

_BLOCK = 32  # columns that are compared at once
_NO_NAMES = torch.empty(0, dtype=torch.int64)


def draw(
    logits: Tensor,
    sampling: BatchSampling,
    support: int,
    generator: torch.Generator,
    names: Tensor | None,
) -> Tensor:
    """See `specray.draft.decoding.Draw`."""
    num_rows, num_columns = logits.shape
    if sampling.has_sampled:
        support = min(support, num_columns)
        race = make_race(num_rows, support, generator)
    else:
        support, race = 1, torch.ones((num_rows, 1), dtype=torch.float64)
    out = torch.empty((num_rows, 1 + 2 * support), dtype=torch.int32)
    _draw(
        logits.float().contiguous().numpy(),
        sampling.temperature.numpy(),
        sampling.top_k.numpy(),
        sampling.top_p.numpy(),
        race.numpy(),
        (_NO_NAMES if names is None else names).numpy(),
        out.numpy(),
        out.view(torch.float32).numpy(),
    )
    return out if sampling.has_sampled else out[:, :1]


@numba.njit(**OPTIONS)
def _draw(
    logits: Array,
    temperatures: Array,
    top_ks: Array,
    top_ps: Array,
    race: Array,
    names: Array,
    out: Array,
    shares: Array,
) -> None:
    """Of each row its token, its support and, in the same memory as float32, its probabilities."""
    support = race.shape[1]
    columns = out[:, 1 : 1 + support]
    probabilities = shares[:, 1 + support :]
    for r in range(len(logits)):
        _keep_likeliest(logits[r], columns[r], probabilities[r])
        given = temperatures[r]
        temperature = given if given > 0 else float32(1)
        if support > 1:
            _filter(logits[r], probabilities[r], temperature, top_ks[r], top_ps[r])
        else:
            probabilities[r, 0] = 1
        drawn = _first(probabilities[r], race[r]) if given > 0 else 0
        for rank in range(support):
            if rank == 0 or probabilities[r, rank] > 0:
                if len(names):
                    columns[r, rank] = names[columns[r, rank]]
            else:
                columns[r, rank] = 0
        out[r, 0] = columns[r, drawn]


@numba.njit(**OPTIONS)
def _keep_likeliest(row: Array, columns: Array, kept: Array) -> None:
    """The columns of the largest logits, and these; largest first, of equal ones the first one."""
    columns[:] = 0
    kept[:] = -math.inf
    last = len(kept) - 1
    for first in range(0, len(row), _BLOCK):
        end = min(len(row), first + _BLOCK)
        threshold, num_larger = kept[last], 0
        for column in range(first, end):
            num_larger += row[column] > threshold
        if num_larger:
            for column in range(first, end):
                if row[column] > kept[last]:
                    _insert(column, row[column], columns, kept)


@numba.njit(**OPTIONS)
def _insert(column: int, logit: float, columns: Array, kept: Array) -> None:
    place = len(kept) - 1
    while place > 0 and kept[place - 1] < logit:
        kept[place], columns[place] = kept[place - 1], columns[place - 1]
        place -= 1
    kept[place], columns[place] = logit, column


@numba.njit(**OPTIONS)
def _filter(row: Array, kept: Array, temperature: float, top_k: int, top_p: float) -> None:
    """Makes the largest logits probabilities, as `truncate` does."""
    support, largest = len(kept), kept[0]
    num_kept = min(top_k, support) if top_k > 0 else support
    mass = 0.0
    if 0 < top_k <= support:
        for rank in range(num_kept):
            mass += math.exp((kept[rank] - largest) / temperature)
    else:
        mass = _mass(row, largest, float32(1) / temperature)
    before, total = 0.0, 0.0
    for rank in range(support):
        share = 0.0
        if rank < num_kept:
            share = math.exp((kept[rank] - largest) / temperature) / mass
        is_kept = rank == 0 or before < top_p
        before += share
        kept[rank] = share if is_kept else 0.0
        total += kept[rank]
    for rank in range(support):
        kept[rank] /= total


@numba.njit(**OPTIONS)
def _mass(row: Array, largest: float, factor: float) -> float:
    total = float32(0)
    for column in range(len(row)):
        total += exp((row[column] - largest) * factor)
    return total


@numba.njit(**OPTIONS)
def _first(probabilities: Array, race: Array) -> int:
    """See `specray.sampling.truncation.draw_from`."""
    best, drawn = 0.0, 0
    for rank in range(len(race)):
        speed = probabilities[rank] / race[rank]
        if speed > best:
            best, drawn = speed, rank
    return drawn
