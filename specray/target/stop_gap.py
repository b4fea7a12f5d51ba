"""What a target proposes by itself: in place of a draft's proposal, or behind a short one.

Copies from the request's own text, those from earlier answers where the deployment shares them, and
where it has a table of n-grams, what the target usually says behind its last few tokens.

Exactness. All are functions of the request's tokens and of answers that have ended, behind a
proposal also of that one's tokens, and whether they are looked for depends on earlier commits and
on the clock; so each token counts as a point mass, for sampled requests too. How many are verified
may depend on tokens before them, drawn ones too; whether those are verified never does. Answers
that were drawn with a seed are not remembered: a request with the same seed draws by the same
random numbers, to which a proposal would be tied.

For copies, a scan instead of an index such as `specray.draft.ngram_index`: nothing is done for
requests whose proposals come in time, and a token takes 4 bytes in the engine's process, not a
thousand. A scan takes tens of microseconds, an index some for each token of every request, and the
table some for each token that it guesses.
"""

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.config import TargetPluginConfig
from specray.control.acceptance import expected_length
from specray.errors import InvalidConfigError
from specray.models.ngrams import Likeliest, NgramModel, load_ngrams
from specray.target.answer_memory import END, MARGIN, AnswerMemory
from specray.target.session import Session
from specray.target.text import Text
from specray.types import Proposal, StopGapSource

logger = logging.getLogger(__name__)

_SHORTEST, _LONGEST = 2, MARGIN  # suffixes that are looked for, as by `draft.prompt_lookup`
_MOST_REMEMBERED = 65536  # tokens of earlier answers, for a scan of some 20 us
_MOST_SCANS = 16  # a step; they take the engine's time
_FREE_SCANS = 4  # so few can't be felt
_MOST_ENDS = 2048  # the latest; a text of one token has as many as tokens
_LEAST_SURVIVAL = 0.02  # of a guess behind which others are worth the time to find them
_GAIN = 0.1  # of each step, in what it saves
_LAST_PAUSE = 32  # steps without scans after those that were not worth it


class _Match(NamedTuple):
    end: int  # place of the likeliest next token, where it last followed the suffix
    length: int  # of the suffix
    share: float  # of all its occurrences, those that this token followed


class StopGap:
    """Copies, or guesses by n-grams, whichever is expected to get furthest.

    Used from the engine's thread.
    """

    def __init__(
        self, ngrams: NgramModel | None = None, memory: AnswerMemory | None = None
    ) -> None:
        """Takes the table and the earlier answers, if there are any."""
        self._ngrams = ngrams
        self._memory = memory
        self._texts: dict[int, Text] = {}  # by session
        self._found: dict[int, Proposal | None] = {}  # by session, in this step
        self._num_tails = 0  # looked for in this step
        self._pause, self._num_paused = 1, 0
        self._gain_s = 0.0  # of steps that verify what was found, on average

    @property
    def has_ngrams(self) -> bool:
        """Whether it guesses, where there is nothing to copy."""
        return self._ngrams is not None

    @property
    def only_copies_own_text(self) -> bool:
        """Whether it finds no more than any draft that looks up."""
        return self._ngrams is None and self._memory is None

    def close(self, session: Session) -> None:
        """Forget a session, but for its answer if that may be shared."""
        self._texts.pop(session.session_id, None)
        if self._memory is not None and session.is_shareable:
            answer = session.token_ids[session.num_prompt_tokens : len(session.token_ids)]
            self._memory.add(session.tenant, answer)

    def find(self, session: Session, depth: int) -> Proposal | None:
        """At most so many tokens, the same for the whole step; None: nothing matches."""
        session_id = session.session_id
        if session_id in self._found:
            return self._found[session_id]
        if depth < 1 or self._num_paused or self._num_scans >= _MOST_SCANS:
            return None
        self._found[session_id] = self._best(session, self._follow(session), depth)
        return self._found[session_id]

    def find_tail(self, session: Session, token_ids: Sequence[int], depth: int) -> Proposal | None:
        """What may follow these tokens, proposed for the session by somebody else.

        Args:
            session: whose text they extend.
            token_ids: all of which would have to be accepted.
            depth: most tokens to guess behind them.
        """
        if depth < 1 or self._num_paused or self._num_scans >= _MOST_SCANS:
            return None
        self._num_tails += 1
        text = np.concatenate((self._follow(session), np.array(token_ids, np.int32)))
        return self._best(session, text, depth)

    @property
    def _num_scans(self) -> int:
        """In this step."""
        return len(self._found) + self._num_tails

    def _best(self, session: Session, text: NDArray[np.int32], depth: int) -> Proposal | None:
        session_id = session.session_id
        found = [_copy(session_id, text, text, depth, "stop_gap")]
        if self._memory is not None:
            past = self._memory.text(session.tenant)
            found.append(_copy(session_id, text, past, depth, "stop_gap_shared"))
        if self._ngrams is not None:
            found.append(_guess(session_id, text, self._ngrams, depth))
        there = [proposal for proposal in found if proposal is not None]
        return max(there, key=lambda p: expected_length(p.confidences), default=None)

    def _follow(self, session: Session) -> NDArray[np.int32]:
        text = self._texts.setdefault(session.session_id, Text())
        text.append(session.token_ids[len(text) : len(session.token_ids)])
        return text.token_ids

    def skip_step(self) -> None:
        """The step verifies nothing, whatever was found: that says nothing of its worth."""
        self._found, self._num_tails = {}, 0

    def end_step(self, verified: Collection[int], gain_s: float) -> None:
        """The step is planned: learn whether this is worth its time, and forget what was found.

        Args:
            verified: sessions for which the step verifies what was found.
            gain_s: seconds that the step is expected to save by all that it verifies.
        """
        num_scans = self._num_scans
        self._found, self._num_tails = {}, 0
        if verified:
            self._gain_s += _GAIN * (gain_s - self._gain_s)
        if verified and self._gain_s > 0:
            self._pause = 1
        elif num_scans > _FREE_SCANS or verified:
            self._num_paused = self._pause
            self._pause = min(2 * self._pause, _LAST_PAUSE)
        else:
            self._num_paused = max(0, self._num_paused - 1)


def make_stop_gap(config: TargetPluginConfig) -> StopGap:
    """With what the deployment's drafts have; without n-grams where they are not to be had here.

    They bring speed only: a target without goes on, and says so in its log.
    """
    memory, folder = None, config.ngrams
    if config.shared_tokens:
        num_tokens = min(config.shared_tokens, _MOST_REMEMBERED)
        memory = AnswerMemory(num_tokens, is_common=config.shared_between_tenants)
    try:
        ngrams = load_ngrams(Path(folder)) if folder else None
    except InvalidConfigError as error:
        logger.warning("no n-grams for the stop-gap: %s", error)
        return StopGap(None, memory)
    if folder and ngrams is None:
        logger.warning("no n-grams for the stop-gap: %s is not on this node or has none", folder)
    return StopGap(ngrams, memory)


def _longest_match(text: NDArray[np.int32], past: NDArray[np.int32]) -> _Match | None:
    """The longest suffix of a text in what may be itself, before its end, or earlier answers.

    Its most frequent follower there, ties to the latest.
    """
    last, stop = len(text) - 1, len(past) - 1
    if last < _SHORTEST or stop < _SHORTEST:
        return None
    is_end = (past[1:stop] == text[last]) & (past[: stop - 1] == text[last - 1])
    ends = np.flatnonzero(is_end)[-_MOST_ENDS:] + 1  # where the shortest suffix ended
    ends = ends[past[ends + 1] != END]
    if not len(ends):
        return None
    back = np.arange(_SHORTEST, min(_LONGEST, last))
    places = ends[:, None] - back
    goes_on = (past[places] == text[last - back]) & (places >= 0)
    lengths = _SHORTEST + np.logical_and.accumulate(goes_on, axis=1).sum(axis=1)
    length = lengths.max()
    ends = ends[lengths == length]
    followers = past[ends + 1].tolist()
    counts = Counter(followers)
    most = max(counts.values())
    latest = next(i for i in reversed(range(len(ends))) if counts[followers[i]] == most)
    return _Match(int(ends[latest]) + 1, int(length), most / len(ends))


def _copy(
    session_id: int,
    text: NDArray[np.int32],
    past: NDArray[np.int32],
    depth: int,
    source: StopGapSource,
) -> Proposal | None:
    match = _longest_match(text, past)
    if match is None:
        return None
    token_ids = past[match.end : match.end + depth].tolist()
    if past is text:
        token_ids = (token_ids * -(-depth // len(token_ids)))[:depth]  # a loop stays a loop
    else:
        token_ids = list(takewhile(lambda token_id: token_id != END, token_ids))
    # To begin with; what they are worth is learnt. With each token the match is one longer.
    lengths = range(match.length, match.length + len(token_ids))
    confidences = tuple(match.share * length / (length + 2) for length in lengths)
    return Proposal(
        *(session_id, len(text), int(text[-1]), tuple(token_ids), source),
        confidences=confidences,
    )


def _guess(
    session_id: int, text: NDArray[np.int32], ngrams: NgramModel, depth: int
) -> Proposal | None:
    guessed: list[Likeliest] = []
    survival = 1.0
    for likeliest in islice(ngrams.chain(text[-ngrams.context_size :].tolist()), depth):
        guessed.append(likeliest)
        survival *= likeliest.share
        if survival <= _LEAST_SURVIVAL:
            break
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
