"""A bounded memory of earlier answers, for all sessions of a draft.

What SuffixDecoding's global tree is for (arXiv 2411.04975): a model's style, boilerplate and
answers to similar requests recur. Whoever shares it can tell from the speed of an answer what
others were answered, so it is off unless asked for, and each tenant has one of its own.
"""

from collections import OrderedDict
from collections.abc import Sequence

from specray.draft.ngram_index import Context, Guess, NgramIndex


class SharedIndex:
    """The n-grams of the latest answers: at most `max_tokens` of them, at least half as many.

    Two indexes take turns: when the newer one is half of it, the older one is dropped.
    """

    def __init__(self, min_ngram: int, max_ngram: int, max_tokens: int) -> None:
        self._range = min_ngram, max_ngram
        self._half = max_tokens // 2
        self._newer = NgramIndex(*self._range)
        self._older = NgramIndex(*self._range)

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def add(self, token_ids: Sequence[int]) -> None:
        """Takes an answer in; of one that is too long, the beginning."""
        token_ids = token_ids[: self._half]
        if len(self._newer) + len(token_ids) > self._half:
            self._older, self._newer = self._newer, NgramIndex(*self._range)
        self._newer.extend(token_ids)

    def guess(self, context: Context) -> tuple[NgramIndex, Guess] | None:
        """What followed the longest match, the newer if both match as long, and where it stands."""
        best: tuple[NgramIndex, Guess] | None = None
        for index in (self._newer, self._older):
            guess = index.guess(context)
            if guess is not None and (best is None or guess.match_length > best[1].match_length):
                best = index, guess
        return best


class EarlierAnswers:
    """An index for each tenant, of at most `max_tokens` over all of them.

    Where that is too little, the tenants that have not been answered for longest are forgotten.
    """

    def __init__(self, min_ngram: int, max_ngram: int, max_tokens: int) -> None:
        self._range = min_ngram, max_ngram
        self._max_tokens = max_tokens
        self._indexes: OrderedDict[str, SharedIndex] = OrderedDict()  # the latest answered last
        self._num_tokens = 0

    def __len__(self) -> int:
        return self._num_tokens

    def add(self, tenant: str, token_ids: Sequence[int]) -> None:
        """Takes in an answer to a tenant; of one that is too long, the beginning."""
        if not token_ids:
            return
        if tenant not in self._indexes:
            self._indexes[tenant] = SharedIndex(*self._range, self._max_tokens)
        self._indexes.move_to_end(tenant)
        index = self._indexes[tenant]
        self._num_tokens -= len(index)
        index.add(token_ids)
        self._num_tokens += len(index)
        while self._num_tokens > self._max_tokens:
            _, forgotten = self._indexes.popitem(last=False)
            self._num_tokens -= len(forgotten)

    def guess(self, tenant: str, context: Context) -> tuple[NgramIndex, Guess] | None:
        """See `SharedIndex.guess`; None for a tenant of whom nothing is known."""
        index = self._indexes.get(tenant)
        return None if index is None else index.guess(context)
