"""An incremental index of a token sequence: what usually followed its n-grams."""

from collections.abc import Iterable, Sequence
from itertools import islice

_COUNT_SHIFT = 32  # an entry packs count and position into one int: half a tuple's memory
_POSITION_MASK = (1 << _COUNT_SHIFT) - 1


class NgramIndex:
    """Continues a sequence from its own past.

    The longest suffix (of `max_ngram` down to `min_ngram` tokens) that occurred before wins.
    Among the tokens that followed it, the most frequent wins, ties to the most recent; what is
    copied is the text from that token's latest occurrence after the suffix. N-grams are keyed by
    hash: a collision costs a wrong guess, nothing else.

    Append and lookup take O(max_ngram); memory is at most 2 * max_ngram entries a token.
    """

    def __init__(self, min_ngram: int, max_ngram: int, token_ids: Iterable[int] = ()) -> None:
        self._min_ngram = min_ngram
        self._token_ids: list[int] = []
        # Entry n - min_ngram is about n-grams.
        num_sizes = max_ngram - min_ngram + 1
        # Of each n-gram: its best continuation's count and position.
        self._best: list[dict[int, int]] = [{} for _ in range(num_sizes)]
        # Counts of continuations that are not the best, by n-gram and token.
        self._others: list[dict[tuple[int, int], int]] = [{} for _ in range(num_sizes)]
        self._successors: dict[int, dict[int, None]] = {}
        self._suffixes = [0]  # hash of the last n tokens, at n; at most max_ngram of them
        self._max_ngram = max_ngram
        self.extend(token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Appends tokens."""
        for token_id in token_ids:
            self._count(token_id)
            self._suffixes = self._longer(self._suffixes, token_id)
            if self._token_ids:
                followers = self._successors.setdefault(self._token_ids[-1], {})
                followers.pop(token_id, None)  # a dict keeps the order of insertion
                followers[token_id] = None
            self._token_ids.append(token_id)

    def continuation(self, depth: int, ahead: Sequence[int] = ()) -> list[int]:
        """Up to `depth` tokens that may come next; empty when no suffix has a match.

        Args:
            depth: Most tokens wanted.
            ahead: Tokens to be taken as appended, without appending them.
        """
        suffixes = self._suffixes
        for token_id in ahead:
            suffixes = self._longer(suffixes, token_id)
        for size in range(len(suffixes) - 1, self._min_ngram - 1, -1):
            entry = self._best[size - self._min_ngram].get(suffixes[size])
            if entry is not None:
                return self._copy(entry & _POSITION_MASK, depth)
        return []

    def successors(self, token_id: int, most: int) -> list[int]:
        """The tokens that have followed a token, the latest first, at most so many.

        A suffix of two tokens or more can match only if its last token is among them.
        """
        return list(islice(reversed(self._successors.get(token_id, {})), most))

    def _longer(self, suffixes: list[int], token_id: int) -> list[int]:
        return [0, *(hash((suffix, token_id)) for suffix in suffixes[: self._max_ngram])]

    def _count(self, token_id: int) -> None:
        position = len(self._token_ids)
        suffixes = self._suffixes[self._min_ngram :]
        for suffix, best, others in zip(suffixes, self._best, self._others, strict=False):
            entry = best.get(suffix)
            if entry is None:
                best[suffix] = (1 << _COUNT_SHIFT) | position
                continue
            best_count = entry >> _COUNT_SHIFT
            best_id = self._token_ids[entry & _POSITION_MASK]
            if best_id == token_id:
                best[suffix] = ((best_count + 1) << _COUNT_SHIFT) | position
                continue
            count = others.get((suffix, token_id), 0) + 1
            if count < best_count:
                others[suffix, token_id] = count
                continue
            others.pop((suffix, token_id), None)
            others[suffix, best_id] = best_count
            best[suffix] = (count << _COUNT_SHIFT) | position

    def _copy(self, start: int, depth: int) -> list[int]:
        """Tokens from `start`, running on into the copy itself: a loop is proposed as a loop."""
        period = self._token_ids[start : start + depth]
        repeats = -(-depth // len(period))
        return (period * repeats)[:depth]
