"""Drawing one token per row, so that a row's draws depend on its own seed only.

Written for few passes over [rows, vocab]: on a CPU they would cost as much as the model.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_NUCLEUS_LIMIT = 128  # tokens; a nucleus that is larger is cut there
_BLOCK = 256  # columns whose weights are summed before any is looked at


class Row(NamedTuple):
    """How each row is drawn: a field is a tensor of [rows]."""

    temperatures: Tensor  # 0 is greedy
    top_ps: Tensor
    numbers: Tensor  # uniform in [0, 1)


class Drawn(NamedTuple):
    """The tokens of one step."""

    tokens: Tensor  # [rows]
    top_ids: Tensor  # [rows, top_k], most likely first
    top_logprobs: Tensor  # [rows, top_k], at temperature 1


def uniforms(seeds: list[int], num_draws: int) -> Tensor:  # [rows, num_draws]
    """For each row the numbers in [0, 1) that all of its draws use."""
    rows = [torch.rand(num_draws, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(rows)


def draw(logits: Tensor, rows: Row, top_k: int) -> Drawn:
    """One token per row, by inversion of its distribution function.

    Args:
        logits: [rows, vocab], float32; overwritten.
        rows: temperature, top-p and random number of each row.
        top_k: most likely tokens to report.
    """
    values, ids = logits.topk(max(top_k, 1), dim=1)
    weights = logits.sub_(values[:, :1]).exp_()
    logprobs = values - values[:, :1] - weights.sum(dim=1, keepdim=True).log()
    tokens = ids[:, 0].clone()
    for is_nucleus in (False, True):
        chosen = ((rows.temperatures > 0) & ((rows.top_ps < 1) == is_nucleus)).nonzero().squeeze(1)
        if len(chosen):
            part = Row(*(field[chosen] for field in rows))
            pick = _pick_nucleus if is_nucleus else _pick_any
            tokens[chosen] = pick(_heated(weights[chosen], part.temperatures), part)
    return Drawn(tokens, ids[:, :top_k], logprobs[:, :top_k])


def _heated(weights: Tensor, temperatures: Tensor) -> Tensor:
    if bool((temperatures == 1).all()):
        return weights
    return weights.pow_(1 / temperatures[:, None])


def _pick_nucleus(weights: Tensor, rows: Row) -> Tensor:  # [rows]
    total = weights.sum(dim=1, keepdim=True)
    top, ids = weights.topk(min(_NUCLEUS_LIMIT, weights.shape[1]), dim=1)
    before = top.cumsum(dim=1) - top
    column = _pick(top * (before < rows.top_ps[:, None] * total), rows.numbers).column
    return ids.gather(1, column[:, None]).squeeze(1)


def _pick_any(weights: Tensor, rows: Row) -> Tensor:  # [rows]
    padding = -weights.shape[1] % _BLOCK
    blocks = torch.nn.functional.pad(weights, (0, padding)).unflatten(1, (-1, _BLOCK))
    block = _pick(blocks.sum(dim=2), rows.numbers)
    inside = blocks[torch.arange(len(blocks)), block.column]
    return block.column * _BLOCK + _pick(inside, block.remainder).column


class _Pick(NamedTuple):
    column: Tensor  # [rows]
    remainder: Tensor  # [rows], uniform in [0, 1) again: where inside the column the number fell


def _pick(weights: Tensor, numbers: Tensor) -> _Pick:
    """The column in which each row's cumulated weight passes its number's share of the whole."""
    cumulated = weights.double().cumsum(dim=1)
    thresholds = numbers[:, None].double() * cumulated[:, -1:]
    columns = torch.searchsorted(cumulated, thresholds, right=True)
    # At most the last column with a weight: rounding must not reach one that has none.
    last = (cumulated < cumulated[:, -1:]).sum(dim=1, keepdim=True)
    columns = torch.minimum(columns, last)
    weight = weights.gather(1, columns).double().clamp(min=torch.finfo(torch.float64).tiny)
    before = cumulated.gather(1, columns) - weight
    remainder = ((thresholds - before) / weight).clamp(0, 1 - 1e-9)
    return _Pick(columns.squeeze(1), remainder.squeeze(1))
