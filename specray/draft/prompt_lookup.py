"""A draft without a model: answers often repeat their prompt and themselves.

Prompt lookup decoding (A. Saxena, 2023), with counts over all matches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from specray.config import PromptLookupConfig
from specray.control.acceptance import expected_length
from specray.draft.fair_share import FairShare, Held
from specray.draft.ngram_index import Context, Guess, NgramIndex
from specray.draft.session import Session, unknown_session
from specray.draft.shared_index import EarlierAnswers
from specray.draft.survival import (
    EARLIER_ANSWERS,
    OWN_TEXT,
    Survival,
    SurvivalTable,
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


_NOTHING = Lookup((), ())


@dataclass(frozen=True, slots=True)
class _Entry:
    session: Session
    index: NgramIndex  # of the session's tokens
    survival: SurvivalTable
    tenant: str
    num_opened_with: int  # tokens; those since then may be shared
    is_shareable: bool


class PromptLookup:
    """Proposes what followed the same tokens earlier in the request, as point masses.

    With `shared_tokens` also what followed them in earlier answers to the same tenant.
    """

    def __init__(self, config: PromptLookupConfig, share: FairShare | None = None) -> None:
        """Takes what is looked up, and which tenant makes room; all count alike if left out."""
        self._config = config
        self._share = share or FairShare()
        self._survival = Survival(OWN_TEXT)
        self._shared_survival = Survival(EARLIER_ANSWERS)
        self._shared: EarlierAnswers | None = None
        if config.shared_tokens:
            self._shared = EarlierAnswers(config.min_ngram, config.max_ngram, config.shared_tokens)
        self._entries: dict[int, _Entry] = {}  # the idlest first
        self._num_tokens = 0  # in their indexes
        self._evicted: list[int] = []

    def open(self, session: OpenSession) -> None:
        """Indexes the session's tokens; raises SessionRejectedError when there are none."""
        self.close(session.session_id)
        indexed = session.token_ids[-self._config.prompt_tokens :]
        entry = _Entry(
            Session(session),
            NgramIndex(self._config.min_ngram, self._config.max_ngram, indexed),
            self._survival.table(session.sampling),
            "" if self._config.shared_between_tenants else session.tenant,
            len(session.token_ids),
            session.is_shareable,
        )
        self._add(session.session_id, entry)

    def commit(self, commit: Commit) -> None:
        """Indexes what was committed; raises SessionRejectedError after a missed commit."""
        entry = self._remove(commit.session_id)
        if entry is None:
            raise unknown_session(commit.session_id)
        entry.session.extend(commit)
        for token_id in commit.token_ids:
            for index, guess, survival in self._guesses(entry, entry.index.end):
                survival.observe(guess, is_right=index.copy(guess.position, 1) == [token_id])
            entry.index.extend((token_id,))
        self._add(commit.session_id, entry)

    def close(self, session_id: int) -> None:
        """Forgets the session, but for its answer if that is shared."""
        entry = self._remove(session_id)
        if entry is not None and self._shared is not None and entry.is_shareable:
            self._shared.add(entry.tenant, entry.session.token_ids[entry.num_opened_with :])

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        """The best continuation of each session, then those for the outcomes of verifying it.

        All are point masses, for sampled requests too.
        """
        return [proposal for session_id in session_ids for proposal in self._propose(session_id)]

    def work(self) -> bool:
        """Nothing: all is done at once."""
        return False

    def take_evicted(self) -> list[int]:
        """Sessions that were closed since the last call to make room for others."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def session(self, session_id: int) -> Session:
        """An open session, as it is now."""
        return self._entries[session_id].session

    def look_up(self, session_id: int) -> Lookup:
        """What the session's text proposes."""
        entry = self._entries[session_id]
        return self._look_up(entry, entry.index.end, entry.session.depth)

    def proposal(self, session_id: int, lookup: Lookup) -> Proposal:
        """A look-up behind the session as it is now, to be sent."""
        session = self._entries[session_id].session
        return session.proposal(lookup.token_ids, "prompt_lookup", confidences=lookup.rates)

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
                following = self._look_up(entry, index.beyond(context, added), session.depth)
                if following.token_ids and following.expected_length >= min_length:
                    yield session.ahead(
                        position,
                        added,
                        following.token_ids,
                        "prompt_lookup",
                        confidences=following.rates,
                    )
            if accepted is not None:
                context, last = index.beyond(context, accepted), accepted

    def _add(self, session_id: int, entry: _Entry) -> None:
        """Puts it last; where there are too many tokens then, others go: see `FairShare`."""
        self._entries[session_id] = entry
        self._num_tokens += len(entry.index)
        while self._num_tokens > self._config.max_tokens and len(self._entries) > 1:
            held = [Held(i, e.session.tenant, len(e.index)) for i, e in self._entries.items()]
            for evicted in self._share.choose(held, {session_id}, short=1):
                self.close(evicted)
                self._evicted.append(evicted)

    def _remove(self, session_id: int) -> _Entry | None:
        entry = self._entries.pop(session_id, None)
        if entry is not None:
            self._num_tokens -= len(entry.index)
        return entry

    def _look_up(self, entry: _Entry, context: Context, depth: int) -> Lookup:
        """The copy that is expected to get furthest."""
        best, best_length = _NOTHING, 0.0
        for index, guess, survival in self._guesses(entry, context):
            rates = survival.rates(guess, depth)
            length = expected_length(rates)
            if length > best_length:
                token_ids = tuple(index.copy(guess.position, depth))
                best = Lookup(token_ids, tuple(rates[: len(token_ids)]))
                best_length = length
        return best

    def _guesses(
        self, entry: _Entry, context: Context
    ) -> Iterator[tuple[NgramIndex, Guess, SurvivalTable]]:
        own = entry.index.guess(context)
        if own is not None:
            yield entry.index, own, entry.survival
        if self._shared is not None:
            shared = self._shared.guess(entry.tenant, context)
            if shared is not None:
                yield *shared, self._shared_survival.table(entry.session.sampling)

    def _propose(self, session_id: int) -> list[Proposal]:
        now = self.proposal(session_id, self.look_up(session_id))
        if not self.session(session_id).depth:
            return [now]
        # A single token may match anywhere, and too much follows some tokens, and any token in
        # other answers: then what is sent ahead is not all there could be.
        is_listable = self._config.min_ngram >= 2 and self._shared is None
        index, last = self._entries[session_id].index, now.last_token_id
        is_listable &= all(
            index.num_successors(token_id) <= _MOST_OUTCOMES for token_id in (last, *now.token_ids)
        )
        now = replace(now, covers_outcomes=is_listable)
        return [now, *self.ahead(session_id, now.token_ids)]
