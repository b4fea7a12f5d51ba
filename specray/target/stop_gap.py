"""What a target proposes by itself when its draft's proposal is not there.

Copies from the request's own text and, where the deployment has a table of n-grams, what the target
usually says behind its last few tokens.

Exactness. Both are functions of the request's tokens, and whether they are looked for depends on
earlier commits and on the clock; so each token counts as a point mass, for sampled requests too,
and how many are verified never depends on what was drawn.

For copies, a scan instead of an index such as `specray.draft.ngram_index`: nothing is done for
requests whose proposals come in time, and a token takes 4 bytes in the engine's process, not a
thousand. A scan takes tens of microseconds, an index some for each token of every request, and the
table some for each token that it guesses.
"""

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.errors import InvalidConfigError
from specray.models.ngrams import Likeliest, NgramModel, load_ngrams
from specray.target.session import Session
from specray.types import Proposal

logger = logging.getLogger(__name__)

_SHORTEST, _LONGEST = 2, 8  # suffixes that are looked for, as by `draft.prompt_lookup`
_MOST_SCANS = 16  # a step; they take the engine's time
_FREE_SCANS = 4  # so few can't be felt
_MOST_ENDS = 2048  # the latest; a text of one token has as many as tokens
_LEAST_SURVIVAL = 0.02  # of a guess behind which others are worth the time to find them
_GAIN = 0.1  # of each step, in what it saves
_LAST_PAUSE = 32  # steps without scans after those that were not worth it


@dataclass(slots=True)
class _Text:
    token_ids: NDArray[np.int32]  # with room for more
    length: int = 0

    def follow(self, session: Session) -> NDArray[np.int32]:
        """The session's tokens, of which only the new ones are copied."""
        length = len(session.token_ids)
        if length > len(self.token_ids):
            grown = np.empty(2 * length, np.int32)
            grown[: self.length] = self.token_ids[: self.length]
            self.token_ids = grown
        self.token_ids[self.length : length] = session.token_ids[self.length :]
        self.length = length
        return self.token_ids[:length]


class _Match(NamedTuple):
    end: int  # place of the likeliest next token, where it last followed the suffix
    length: int  # of the suffix
    share: float  # of all its occurrences, those that this token followed


class StopGap:
    """Copies, or guesses by n-grams, whichever is expected to get further.

    Used from the engine's thread.
    """

    def __init__(self, ngrams: NgramModel | None = None) -> None:
        """Takes the table, if there is one."""
        self._ngrams = ngrams
        self._texts: dict[int, _Text] = {}  # by session
        self._found: dict[int, Proposal | None] = {}  # by session, in this step
        self._pause, self._num_paused = 1, 0
        self._gain_s = 0.0  # of steps that verify what was found, on average

    @property
    def has_ngrams(self) -> bool:
        """Whether it guesses, where there is nothing to copy."""
        return self._ngrams is not None

    def close(self, session_id: int) -> None:
        """Forget a session; unknown ones are ignored."""
        self._texts.pop(session_id, None)

    def find(self, session: Session, depth: int) -> Proposal | None:
        """At most so many tokens, the same for the whole step; None: nothing matches."""
        session_id = session.session_id
        if session_id in self._found:
            return self._found[session_id]
        if depth < 1 or self._num_paused or len(self._found) >= _MOST_SCANS:
            return None
        text = self._texts.setdefault(session_id, _Text(np.empty(0, np.int32))).follow(session)
        match = _longest_match(text)
        copy = match and _copy(session_id, text, match, depth)
        guess = None
        if self._ngrams is not None:
            guess = _guess(session_id, text, self._ngrams, depth)
        self._found[session_id] = max(copy, guess, key=_expected_length)
        return self._found[session_id]

    def skip_step(self) -> None:
        """The step verifies nothing, whatever was found: that says nothing of its worth."""
        self._found = {}

    def end_step(self, verified: Collection[int], gain_s: float) -> None:
        """The step is planned: learn whether this is worth its time, and forget what was found.

        Args:
            verified: sessions for which the step verifies what was found.
            gain_s: seconds that the step is expected to save by all that it verifies.
        """
        num_scans = len(self._found)
        self._found = {}
        if verified:
            self._gain_s += _GAIN * (gain_s - self._gain_s)
        if verified and self._gain_s > 0:
            self._pause = 1
        elif num_scans > _FREE_SCANS or verified:
            self._num_paused = self._pause
            self._pause = min(2 * self._pause, _LAST_PAUSE)
        else:
            self._num_paused = max(0, self._num_paused - 1)


def make_stop_gap(folder: str | None) -> StopGap:
    """With the n-grams in a draft's folder; without them where they are not to be had here.

    They bring speed only: a target without goes on, and says so in its log.
    """
    try:
        ngrams = load_ngrams(Path(folder)) if folder else None
    except InvalidConfigError as error:
        logger.warning("no n-grams for the stop-gap: %s", error)
        return StopGap()
    if folder and ngrams is None:
        logger.warning("no n-grams for the stop-gap: %s is not on this node or has none", folder)
    return StopGap(ngrams)


def _longest_match(text: NDArray[np.int32]) -> _Match | None:
    """The longest suffix that occurred before; its most frequent follower, ties to the latest."""
    last = len(text) - 1
    if last < _SHORTEST:
        return None
    is_end = (text[1:last] == text[last]) & (text[: last - 1] == text[last - 1])
    ends = np.flatnonzero(is_end)[-_MOST_ENDS:] + 1  # where the shortest suffix ended
    if not len(ends):
        return None
    back = np.arange(_SHORTEST, min(_LONGEST, last))
    places = ends[:, None] - back
    goes_on = (text[places] == text[last - back]) & (places >= 0)
    lengths = _SHORTEST + np.logical_and.accumulate(goes_on, axis=1).sum(axis=1)
    length = lengths.max()
    ends = ends[lengths == length]
    followers = text[ends + 1].tolist()
    counts = Counter(followers)
    most = max(counts.values())
    latest = next(i for i in reversed(range(len(ends))) if counts[followers[i]] == most)
    return _Match(int(ends[latest]) + 1, int(length), most / len(ends))


def _copy(session_id: int, text: NDArray[np.int32], match: _Match, depth: int) -> Proposal:
    period = text[match.end : match.end + depth].tolist()
    token_ids = (period * -(-depth // len(period)))[:depth]  # a loop stays a loop
    # To begin with; what they are worth is learnt. With each token the match is one longer.
    lengths = range(match.length, match.length + depth)
    confidences = tuple(match.share * length / (length + 2) for length in lengths)
    return Proposal(
        *(session_id, len(text), int(text[-1]), tuple(token_ids), "stop_gap"),
        confidences=confidences,
    )


def _guess(
    session_id: int, text: NDArray[np.int32], ngrams: NgramModel, depth: int
) -> Proposal | None:
    context: list[int] = text[-len(ngrams.orders) :].tolist()
    guessed: list[Likeliest] = []
    survival = 1.0
    while len(guessed) < depth and survival > _LEAST_SURVIVAL:
        likeliest = ngrams.likeliest(context)
        if likeliest is None:
            break
        guessed.append(likeliest)
        survival *= likeliest.share
        context = [*context, likeliest.token_id][-len(ngrams.orders) :]
    if not guessed:
        return None
    return Proposal(
        session_id,
        len(text),
        int(text[-1]),
        tuple(token_id for token_id, _ in guessed),
        "stop_gap_ngram",
        confidences=tuple(share for _, share in guessed),
    )


def _expected_length(proposal: Proposal | None) -> float:
    return sum(accumulate(proposal.confidences, mul)) if proposal is not None else 0.0
