"""An incremental index of a token sequence: what usually followed its n-grams."""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

# An entry packs total, count and position into one int: a third of a tuple's memory.
_BITS = 24  # of count and position; texts stay below 16 million tokens
_MASK = (1 << _BITS) - 1
_ONE_OF_ONE = (1 << 2 * _BITS) | (1 << _BITS)

Context = list[int]
"""The hash of the last n tokens at place n, for n up to `max_ngram`."""


class Guess(NamedTuple):
    """What may come next, and what speaks for it."""

    position: int  # of the latest place where the likely token followed the suffix
    match_length: int  # tokens of the longest suffix that had been followed by something
    share: float  # of these times, in (0, 1], how often it was this token


class NgramIndex:
    """Continues a sequence from its own past.

    The longest suffix (of `max_ngram` down to `min_ngram` tokens) that occurred before wins.
    Among the tokens that followed it, the most frequent wins, ties to the most recent; what is
    copied is the text from that token's latest occurrence after the suffix. (To look each token
    up anew gets no further and takes three times as long.) N-grams are keyed by hash: a collision
    costs a wrong guess, nothing else.

    Append and lookup take O(max_ngram); memory is at most 2 * max_ngram entries a token.
    """

    def __init__(self, min_ngram: int, max_ngram: int, token_ids: Iterable[int] = ()) -> None:
        self._min_ngram = min_ngram
        self._max_ngram = max_ngram
        self._token_ids: list[int] = []
        # Entry n - min_ngram is about n-grams.
        num_sizes = max_ngram - min_ngram + 1
        # Of each n-gram: how often it was followed, its best follower's count and position.
        self._best: list[dict[int, int]] = [{} for _ in range(num_sizes)]
        # Counts of followers that are not the best, by n-gram and token.
        self._others: list[dict[tuple[int, int], int]] = [{} for _ in range(num_sizes)]
        self._successors: dict[int, dict[int, None]] = {}
        self._suffixes: Context = [0]
        self.extend(token_ids)

    def __len__(self) -> int:
        return len(self._token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Appends tokens."""
        for token_id in token_ids:
            self._count(token_id)
            self._suffixes = self.beyond(self._suffixes, token_id)
            if self._token_ids:
                followers = self._successors.setdefault(self._token_ids[-1], {})
                followers.pop(token_id, None)  # a dict keeps the order of insertion
                followers[token_id] = None
            self._token_ids.append(token_id)

    @property
    def end(self) -> Context:
        """The context behind the last token."""
        return self._suffixes

    def beyond(self, context: Context, token_id: int) -> Context:
        """The context one token further on, without appending it."""
        return [0, *(hash((suffix, token_id)) for suffix in context[: self._max_ngram])]

    def guess(self, context: Context) -> Guess | None:
        """Where what may come next stands; None when no suffix has a match.

        Args:
            context: made by this index, or by one of the same `max_ngram`.
        """
        for size in range(len(context) - 1, self._min_ngram - 1, -1):
            entry = self._best[size - self._min_ngram].get(context[size])
            if entry is not None:
                share = (entry >> _BITS & _MASK) / (entry >> 2 * _BITS)
                return Guess(entry & _MASK, size, share)
        return None

    def copy(self, position: int, depth: int) -> list[int]:
        """Tokens from a position on, running on into the copy itself: a loop stays a loop."""
        period = self._token_ids[position : position + depth]
        repeats = -(-depth // len(period))
        return (period * repeats)[:depth]

    def successors(self, token_id: int, most: int) -> list[int]:
        """The tokens that have followed a token, the latest first, at most so many.

        A suffix of two tokens or more can match only if its last token is among them.
        """
        return list(islice(reversed(self._successors.get(token_id, {})), most))

    def num_successors(self, token_id: int) -> int:
        """How many different tokens have followed a token."""
        return len(self._successors.get(token_id, ()))

    def _count(self, token_id: int) -> None:
        position = len(self._token_ids)
        suffixes = self._suffixes[self._min_ngram :]
        for suffix, best, others in zip(suffixes, self._best, self._others, strict=False):
            entry = best.get(suffix)
            if entry is None:
                best[suffix] = _ONE_OF_ONE | position
                continue
            total, best_count = (entry >> 2 * _BITS) + 1, entry >> _BITS & _MASK
            best_id = self._token_ids[entry & _MASK]
            if best_id == token_id:
                best[suffix] = _packed(total, best_count + 1, position)
                continue
            count = others.get((suffix, token_id), 0) + 1
            if count < best_count:
                others[suffix, token_id] = count
                best[suffix] = _packed(total, best_count, entry & _MASK)
                continue
            others.pop((suffix, token_id), None)
            others[suffix, best_id] = best_count
            best[suffix] = _packed(total, count, position)


def _packed(total: int, count: int, position: int) -> int:
    return (total << 2 * _BITS) | (count << _BITS) | position
