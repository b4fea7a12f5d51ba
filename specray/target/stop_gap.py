"""What a request's own text proposes when its draft's proposal is not there.

Exactness. A copy is a function of the request's tokens, and whether one is looked for depends on
earlier commits and on the clock; so each token counts as a point mass, for sampled requests too,
and how many are verified never depends on what was drawn.

A scan instead of an index such as `specray.draft.ngram_index`: nothing is done for requests whose
proposals come in time, and a token takes 4 bytes in the engine's process, not a thousand. It takes
15 to 35 µs, an index 4 µs for each token of every request.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.target.session import Session
from specray.types import Proposal

_SHORTEST, _LONGEST = 2, 8  # suffixes that are looked for, as by `draft.prompt_lookup`
_MOST_SCANS = 16  # a step; they take the engine's time
_FREE_SCANS = 4  # so few can't be felt
_MOST_ENDS = 2048  # the latest; a text of one token has as many as tokens
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
    """Copies what followed the same tokens earlier in a request; used from the engine's thread."""

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}  # by session
        self._found: dict[int, Proposal | None] = {}  # by session, in this step
        self._pause, self._num_paused = 1, 0

    def close(self, session_id: int) -> None:
        """Forget a session; unknown ones are ignored."""
        self._texts.pop(session_id, None)

    def find(self, session: Session, depth: int) -> Proposal | None:
        """A copy of at most so many tokens, the same for the whole step; None: nothing matches."""
        session_id = session.session_id
        if session_id in self._found:
            return self._found[session_id]
        if depth < 1 or self._num_paused or len(self._found) >= _MOST_SCANS:
            return None
        text = self._texts.setdefault(session_id, _Text(np.empty(0, np.int32))).follow(session)
        match = _longest_match(text)
        self._found[session_id] = match and _copy(session_id, text, match, depth)
        return self._found[session_id]

    def end_step(self, verified: Collection[int]) -> None:
        """The step is planned: learn whether scans are worth their time, and forget what was found.

        Args:
            verified: sessions whose copies the step verifies.
        """
        num_scans = len(self._found)
        self._found = {}
        if verified:
            self._pause = 1
        elif num_scans > _FREE_SCANS:
            self._num_paused = self._pause
            self._pause = min(2 * self._pause, _LAST_PAUSE)
        else:
            self._num_paused = max(0, self._num_paused - 1)


def _longest_match(text: NDArray[np.int32]) -> _Match | None:
    """The longest suffix that occurred before; its most frequent follower, ties to the latest."""
    last, length = len(text) - 1, 1
    ends = np.flatnonzero(text[:last] == text[last])[-_MOST_ENDS:]  # where the suffix ended
    while length < _LONGEST:
        longer = ends[ends >= length]
        longer = longer[text[longer - length] == text[last - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    if length < _SHORTEST:
        return None
    followers = text[ends + 1]
    token_ids, counts = np.unique(followers, return_counts=True)
    is_best = np.isin(followers, token_ids[counts == counts.max()])
    return _Match(int(ends[is_best][-1]) + 1, length, float(counts.max()) / len(ends))


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
