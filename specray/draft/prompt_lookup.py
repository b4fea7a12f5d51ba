"""A draft without a model: answers often repeat their prompt and themselves.

Prompt lookup decoding (A. Saxena, 2023), with counts over all matches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from specray.config import PromptLookupConfig
from specray.draft.ngram_index import Context, NgramIndex
from specray.draft.session import Session, unknown_session
from specray.draft.shared_index import SharedIndex
from specray.draft.survival import (
    EARLIER_ANSWERS,
    OWN_TEXT,
    Survival,
    SurvivalTable,
    expected_length,
)
from specray.types import Commit, OpenSession, Proposal

_MOST_OUTCOMES = 4  # tokens per place; rarer ones are not worth their bytes


class Lookup(NamedTuple):
    """What some text proposes behind a context."""

    token_ids: tuple[int, ...]
    rates: tuple[float, ...]  # chance of each to be accepted, given that all before it were

    @property
    def expected_length(self) -> float:
        """Tokens that will be accepted, on average."""
        return expected_length(self.rates)


class _Origin(NamedTuple):
    """Where guesses come from, and what they are worth."""

    text: NgramIndex | SharedIndex
    survival: SurvivalTable


@dataclass(frozen=True, slots=True)
class _Entry:
    session: Session
    index: NgramIndex  # of the session's tokens
    origins: tuple[_Origin, ...]
    num_prompt_tokens: int

    def look_up(self, context: Context) -> Lookup:
        """Token by token the guess that is most likely to be right, each behind the last."""
        token_ids: list[int] = []
        rates: list[float] = []
        while len(token_ids) < self.session.depth and (guesses := self._guesses(context)):
            rate, token_id = max(guesses, key=itemgetter(0))
            token_ids.append(token_id)
            rates.append(rate)
            context = self.index.beyond(context, token_id)
        return Lookup(tuple(token_ids), tuple(rates))

    def extend(self, token_id: int) -> None:
        for text, survival in self.origins:
            guess = text.guess(self.index.end)
            if guess is not None:
                survival.observe(guess, token_id)
        self.index.extend((token_id,))

    def _guesses(self, context: Context) -> list[tuple[float, int]]:
        return [
            (survival.rate(guess), guess.token_id)
            for text, survival in self.origins
            if (guess := text.guess(context)) is not None
        ]


class PromptLookup:
    """Proposes what followed the same tokens earlier in the request, as point masses.

    With `shared_tokens` also what followed them in earlier answers to other requests.
    """

    def __init__(self, config: PromptLookupConfig) -> None:
        self._config = config
        self._survival = Survival(OWN_TEXT)
        self._shared_survival = Survival(EARLIER_ANSWERS)
        self._shared: SharedIndex | None = None
        if config.shared_tokens:
            self._shared = SharedIndex(config.min_ngram, config.max_ngram, config.shared_tokens)
        self._entries: dict[int, _Entry] = {}

    def open(self, session: OpenSession) -> None:
        """Indexes the session's tokens; raises SessionRejectedError when there are none."""
        self.close(session.session_id)
        opened = Session(session)
        index = NgramIndex(self._config.min_ngram, self._config.max_ngram, session.token_ids)
        origins = [_Origin(index, self._survival.table(session.sampling))]
        if self._shared is not None:
            origins.append(_Origin(self._shared, self._shared_survival.table(session.sampling)))
        self._entries[session.session_id] = _Entry(
            opened, index, tuple(origins), session.num_prompt_tokens
        )

    def commit(self, commit: Commit) -> None:
        """Indexes what was committed; raises SessionRejectedError after a missed commit."""
        entry = self._entries.pop(commit.session_id, None)
        if entry is None:
            raise unknown_session(commit.session_id)
        entry.session.extend(commit)
        for token_id in commit.token_ids:
            entry.extend(token_id)
        self._entries[commit.session_id] = entry

    def close(self, session_id: int) -> None:
        """Forgets the session, but for its answer if that is shared."""
        entry = self._entries.pop(session_id, None)
        if entry is not None and self._shared is not None:
            self._shared.add(entry.session.token_ids[entry.num_prompt_tokens :])

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        """The best continuation of each session, then those for the outcomes of verifying it.

        All are point masses, for sampled requests too.
        """
        return [proposal for session_id in session_ids for proposal in self._propose(session_id)]

    def take_evicted(self) -> list[int]:
        """Nothing: an index is small, and closed with its session."""
        return []

    def session(self, session_id: int) -> Session:
        """An open session, as it is now."""
        return self._entries[session_id].session

    def look_up(self, session_id: int) -> Lookup:
        """What the session's text proposes."""
        entry = self._entries[session_id]
        return entry.look_up(entry.index.end)

    def proposal(self, session_id: int, lookup: Lookup) -> Proposal:
        """A look-up behind the session as it is now, to be sent."""
        return self._entries[session_id].session.proposal(lookup.token_ids, "prompt_lookup")

    def ahead(
        self, session_id: int, token_ids: Sequence[int], min_length: float = 0.0
    ) -> Iterator[Proposal]:
        """Draft ahead: what to propose after each likely outcome of verifying `token_ids`.

        An outcome is a number of accepted tokens and one more token. The next suffix can match
        only if that token has followed its predecessor before, so few outcomes cover all of them.

        Args:
            session_id: An open session.
            token_ids: The proposal that the target is going to verify, whoever drafted it.
            min_length: Outcomes whose look-up isn't expected to go so far are left out.
        """
        entry = self._entries[session_id]
        session, index = entry.session, entry.index
        context, last = index.end, session.token_ids[-1]
        for position, accepted in enumerate((*token_ids, None), start=len(session) + 1):
            for added in index.successors(last, _MOST_OUTCOMES):
                following = entry.look_up(index.beyond(context, added))
                if following.token_ids and following.expected_length >= min_length:
                    yield Proposal(
                        session_id, position, added, following.token_ids, "prompt_lookup"
                    )
            if accepted is not None:
                context, last = index.beyond(context, accepted), accepted

    def _propose(self, session_id: int) -> list[Proposal]:
        now = self.proposal(session_id, self.look_up(session_id))
        if not self.session(session_id).depth:
            return [now]
        # A single token may match anywhere, and too much follows a token in other answers: then
        # what is sent ahead is not all there could be.
        is_listable = self._config.min_ngram >= 2 and self._shared is None
        now = replace(now, covers_outcomes=is_listable)
        return [now, *self.ahead(session_id, now.token_ids)]
