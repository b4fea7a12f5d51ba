"""What the target says behind its last few tokens, averaged over its own answers.

Not its tokens are counted but its stored distributions: an answer teaches what could have come
too. Each order is drawn towards the one below (by interpolation with a fixed weight), so that a
reader needs only the longest context that it finds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.distill.shards import Answer, Answers
from specray.models.ngrams import context_keys

MAX_ORDER = 4
_TOP = 12  # of the target's tokens at a position
_LEAST_SHARE = 0.004
_PULL = 2.0  # observations that the order below counts for
_MOST_CONTEXTS = (1 << 16, 1 << 17, 1 << 17, 1 << 16)  # by order; the most frequent stay
_LEAST_SEEN = (1, 1, 2, 2)  # by order
_MOST_FOLLOWERS = (24, 10, 6, 4)  # by order


class Counts(NamedTuple):
    """All contexts of one length."""

    keys: NDArray[np.int64]  # [contexts], ascending
    starts: NDArray[np.int64]  # [contexts + 1], where the followers of each begin
    token_ids: NDArray[np.int64]  # [followers], most likely first
    shares: NDArray[np.float64]  # [followers]


class _Pairs(NamedTuple):
    """Weights of tokens in rows, in any order; what occurs twice counts together."""

    rows: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    weights: NDArray[np.float64]


def contexts_of(answer: Answer, size: int) -> NDArray[np.int64]:
    """What stands before each of an answer's tokens, [tokens, size], the latest first.

    Before the text stands -1.
    """
    text = np.concatenate((np.full(size, -1), answer.prompt_ids, answer.token_ids))
    first = size + len(answer.prompt_ids) - 1
    places = first + np.arange(len(answer.token_ids))[:, None] - np.arange(size)
    return text[places].astype(np.int64)


def count_ngrams(answers: Answers, max_order: int = MAX_ORDER) -> list[Counts]:
    """Counts what stands behind 1 token, behind 2, and so on.

    Args:
        answers: the target's, without endless loops.
        max_order: longest context.
    """
    contexts = np.concatenate([contexts_of(answer, max_order) for answer in answers])
    tops = np.concatenate([answer.top_ids[:, :_TOP] for answer in answers]).astype(np.int64)
    probs = np.concatenate([answer.top_logprobs[:, :_TOP] for answer in answers])
    probs = np.exp(probs.astype(np.float64))
    orders: list[Counts] = []
    for size in range(1, max_order + 1):
        lower = orders[-1] if orders else None
        orders.append(_count(contexts[:, :size], tops, probs, lower))
    return orders


def rows_of(counts: Counts, contexts: NDArray[np.int64]) -> NDArray[np.int64]:  # [contexts]
    """Where each context is counted; -1 where it is not."""
    if not len(counts.keys):
        return np.full(len(contexts), -1)
    keys = context_keys(contexts)
    places = np.minimum(counts.keys.searchsorted(keys), len(counts.keys) - 1)
    return np.where(counts.keys[places] == keys, places, -1)


def _count(
    contexts: NDArray[np.int64],
    tops: NDArray[np.int64],  # [positions, top]
    probs: NDArray[np.float64],  # [positions, top]
    lower: Counts | None,
) -> Counts:
    size = contexts.shape[1]
    keys, first, rows, seen = np.unique(
        context_keys(contexts), return_index=True, return_inverse=True, return_counts=True
    )
    kept = _frequent(seen, _LEAST_SEEN[size - 1], _MOST_CONTEXTS[size - 1])
    new_rows = np.full(len(keys), -1)
    new_rows[kept] = np.arange(len(kept))
    place, column = np.nonzero((probs > _LEAST_SHARE) & (new_rows[rows] >= 0)[:, None])
    pairs = [_Pairs(new_rows[rows[place]], tops[place, column], probs[place, column])]
    if lower is not None:
        pairs.append(_inherited(contexts[first[kept]], lower))
    merged = _Pairs(*(np.concatenate(parts) for parts in zip(*pairs, strict=True)))
    shares = merged._replace(weights=merged.weights / (seen[kept] + _PULL)[merged.rows])
    return _rows(keys[kept], shares, _MOST_FOLLOWERS[size - 1])


def _frequent(seen: NDArray[np.int64], least: int, most: int) -> NDArray[np.int64]:
    """Indices of the contexts to keep, ascending."""
    order = np.argsort(-seen, kind="stable")[:most]
    return np.sort(order[seen[order] >= least])


def _inherited(contexts: NDArray[np.int64], lower: Counts) -> _Pairs:
    """What the order below says, one token of context shorter."""
    places = rows_of(lower, contexts[:, :-1])
    starts = lower.starts[places]
    lengths = np.where(places >= 0, lower.starts[places + 1] - starts, 0)
    rows = np.repeat(np.arange(len(contexts)), lengths)
    inside = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    found = np.repeat(starts, lengths) + inside
    return _Pairs(rows, lower.token_ids[found], _PULL * lower.shares[found])


def _rows(keys: NDArray[np.int64], pairs: _Pairs, most: int) -> Counts:
    """Adds up what occurs twice, and keeps the most likely of each row."""
    num_tokens = int(pairs.token_ids.max(initial=0)) + 1
    codes, which = np.unique(pairs.rows * num_tokens + pairs.token_ids, return_inverse=True)
    weights = np.bincount(which, pairs.weights, len(codes))
    rows, token_ids = np.divmod(codes, num_tokens)
    order = np.lexsort((-weights, rows))
    rows, token_ids, weights = rows[order], token_ids[order], weights[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = (rank < most) & (weights > _LEAST_SHARE)
    starts = np.searchsorted(rows[kept], np.arange(len(keys) + 1))
    return Counts(keys, starts, token_ids[kept], weights[kept])
