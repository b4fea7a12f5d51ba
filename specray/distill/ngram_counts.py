"""What the target says behind its last few tokens, averaged over its own answers.

Not its tokens are counted but its stored distributions: an answer teaches what could have come
too. Each order is drawn towards the one below (by interpolation with a fixed weight), so that a
reader needs only the longest context that it finds.
"""

import logging
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.distill.shards import Answer, Answers
from specray.distill.tally import Sums, Tally, largest
from specray.models.ngrams import context_keys

logger = logging.getLogger(__name__)

MAX_ORDER = 4
MOST_HELD = 1 << 22  # contexts or followers, while an order is counted
_TOP = 12  # of the target's tokens at a position
_LEAST_SHARE = 0.004
_PULL = 2.0  # observations that the order below counts for
_MOST_CONTEXTS = (1 << 16, 1 << 17, 1 << 17, 1 << 16)  # by order; the most frequent stay
_LEAST_SEEN = (1, 1, 2, 2)  # by order
_MOST_FOLLOWERS = (24, 10, 6, 4)  # by order
_TOKENS = 1 << 32  # a follower is coded as its row times this, plus its token
_BLOCK = 1 << 14  # contexts that inherit at once


class Counts(NamedTuple):
    """All contexts of one length."""

    keys: NDArray[np.int64]  # [contexts], ascending
    starts: NDArray[np.int64]  # [contexts + 1], where the followers of each begin
    token_ids: NDArray[np.int64]  # [followers], most likely first
    shares: NDArray[np.float64]  # [followers]


class _Pairs(NamedTuple):
    """Weights of tokens in rows; what occurs twice counts together."""

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


def count_ngrams(
    answers: Answers, max_order: int = MAX_ORDER, most_held: int = MOST_HELD
) -> list[Counts]:
    """Counts what stands behind 1 token, behind 2, and so on.

    Args:
        answers: the target's, without endless loops; gone through several times for each order.
        max_order: longest context.
        most_held: contexts, then pairs of a context and a follower, that are held while an order
            is counted. Of more the rarest are dropped: they may be missing or count for less, by
            at most what is logged. Below it nothing is lost.
    """
    orders: list[Counts] = []
    for size in range(1, max_order + 1):
        orders.append(_count(answers, size, orders[-1] if orders else None, most_held))
    return orders


def _count(answers: Answers, size: int, lower: Counts | None, most_held: int) -> Counts:
    keys, seen = _frequent(answers, size, most_held)
    scale = seen + _PULL
    shares = Tally(most_held, lambda codes, shares: shares * scale[codes // _TOKENS])
    pairs = _observed(answers, size, keys)
    if lower is not None:
        pairs = chain(pairs, _inherited(_parents(answers, size, keys), lower))
    for rows, token_ids, weights in pairs:
        shares.add(rows * _TOKENS + token_ids, weights / scale[rows])
    sums = shares.read()
    _tell(shares, f"followers of {size} tokens")
    return _rows(keys, sums, _MOST_FOLLOWERS[size - 1])


def _frequent(answers: Answers, size: int, most_held: int) -> Sums:
    """The contexts to keep, and how often they were seen."""
    contexts = Tally(most_held)
    for answer in answers:
        keys = context_keys(contexts_of(answer, size))
        contexts.add(keys, np.ones(len(keys)))
    sums = contexts.read()
    _tell(contexts, f"contexts of {size} tokens")
    kept = largest(sums.values, _MOST_CONTEXTS[size - 1])
    kept = kept[sums.values[kept] >= _LEAST_SEEN[size - 1]]
    return Sums(sums.keys[kept], sums.values[kept])


def _observed(answers: Answers, size: int, keys: NDArray[np.int64]) -> Iterator[_Pairs]:
    """What the target says behind the contexts with these keys."""
    for answer in answers:
        rows = _places(context_keys(contexts_of(answer, size)), keys)
        probs = np.exp(answer.top_logprobs[:, :_TOP].astype(np.float64))
        place, column = np.nonzero((probs > _LEAST_SHARE) & (rows >= 0)[:, None])
        token_ids = answer.top_ids[place, column].astype(np.int64)
        yield _Pairs(rows[place], token_ids, probs[place, column])


def _parents(answers: Answers, size: int, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The keys of the same contexts, one token shorter."""
    parents = np.zeros(len(keys), np.int64)
    for answer in answers:
        contexts = contexts_of(answer, size)
        rows = _places(context_keys(contexts), keys)
        parents[rows[rows >= 0]] = context_keys(contexts[rows >= 0, :-1])
    return parents


def _inherited(parents: NDArray[np.int64], lower: Counts) -> Iterator[_Pairs]:
    """What the order below says, one token of context shorter."""
    for first in range(0, len(parents), _BLOCK):
        places = _places(parents[first : first + _BLOCK], lower.keys)
        starts = lower.starts[places]
        lengths = np.where(places >= 0, lower.starts[places + 1] - starts, 0)
        rows = first + np.repeat(np.arange(len(places)), lengths)
        inside = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        found = np.repeat(starts, lengths) + inside
        yield _Pairs(rows, lower.token_ids[found], _PULL * lower.shares[found])


def _places(wanted: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:  # [wanted]
    """Where each key stands among those that ascend; -1 where it does not."""
    if not len(keys):
        return np.full(len(wanted), -1)
    places = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, -1)


def _tell(tally: Tally, what: str) -> None:
    if tally.lost:
        logger.info("n-grams: rare %s were dropped: counts short by up to %.2g", what, tally.lost)


def _rows(keys: NDArray[np.int64], sums: Sums, most: int) -> Counts:
    """The most likely followers of each row."""
    rows, token_ids = np.divmod(sums.keys, _TOKENS)
    weights = sums.values
    order = np.lexsort((-weights, rows))
    rows, token_ids, weights = rows[order], token_ids[order], weights[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = (rank < most) & (weights > _LEAST_SHARE)
    starts = np.searchsorted(rows[kept], np.arange(len(keys) + 1))
    return Counts(keys, starts, token_ids[kept], weights[kept])
