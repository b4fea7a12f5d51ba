"""A bounded memory of earlier answers, for all sessions of a draft.

What SuffixDecoding's global tree is for (arXiv 2411.04975): a model's style, boilerplate and
answers to similar requests recur. Whoever shares it can tell from the speed of an answer what
others were answered, so it is off unless asked for.
"""

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
