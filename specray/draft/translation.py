"""A draft with another tokenizer than the target's.

Token-level intersection (arXiv 2502.05202): the draft proposes only tokens that both vocabularies
hold, from its distribution restricted to them and renormalised, and their ids are mapped. What is
shipped is what was drawn from, so verification is as lossless as for any other draft. Tokens of
the target that the draft does not have are read by it as the text they stand for.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from specray.draft.outcomes import Outcome
from specray.draft.proposer import DraftsAhead, FollowsOthers, LimitsFanOut, Proposer, TellsWork
from specray.draft.session import unknown_session
from specray.errors import SessionRejectedError
from specray.models.vocabulary import SharedTokens, Vocabulary, shared_tokens
from specray.types import Commit, OpenSession, Proposal, TruncatedDistributions

_NO_TEXT = "\N{REPLACEMENT CHARACTER}"  # for a part of a character, so that no token reads as none
_MISSED = -1  # extends no session: the proposer says so in its own words


class Translation:
    """Maps token ids between a target and a draft."""

    def __init__(
        self, shared: SharedTokens, respell: Callable[[Sequence[int]], Sequence[int]]
    ) -> None:
        """Takes the shared tokens, and how the draft reads a run of tokens that are not shared."""
        self._respell = respell
        self._to_draft = dict(
            zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True)
        )
        self._to_target: NDArray[np.int32] = np.zeros(int(shared.draft_ids.max()) + 1, np.int32)
        self._to_target[shared.draft_ids] = shared.target_ids
        self.draft_ids: frozenset[int] = frozenset(shared.draft_ids.tolist())

    def read(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The target's tokens as the draft reads them; often as many, sometimes not."""
        read: list[int] = []
        for is_shared, run in groupby(token_ids, self._to_draft.__contains__):
            if is_shared:
                read += (self._to_draft[token_id] for token_id in run)
            else:
                read += self._respell(list(run))
        return tuple(read)

    def shares(self, commit: Commit) -> bool:
        """Whether the draft has all of a commit's tokens."""
        return all(token_id in self._to_draft for token_id in commit.token_ids)

    def write(self, token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Shared tokens of the draft, of any shape, as the target's."""
        return self._to_target[token_ids]


def translate(target: Vocabulary, draft: Vocabulary) -> Translation:
    """The translation between two vocabularies.

    Raises:
        InvalidConfigError: They share too few tokens.
    """
    return Translation(
        shared_tokens(target, draft),
        lambda token_ids: draft.encode(target.spell(token_ids) or _NO_TEXT),
    )


class _Lengths:
    """A session for both sides."""

    __slots__ = ("draft", "last_token_id", "target")

    def __init__(self, session: OpenSession, num_read: int) -> None:
        self.target, self.draft = len(session.token_ids), num_read
        self.last_token_id = session.token_ids[-1]

    def extend(self, commit: Commit, num_read: int) -> None:
        self.target += len(commit.token_ids)
        self.draft += num_read
        self.last_token_id = commit.token_ids[-1]


class TranslatedProposer:
    """Lets a proposer that thinks in the draft's tokens follow sessions in the target's."""

    def __init__(self, proposer: Proposer, translation: Translation) -> None:
        """Takes a proposer that proposes none but `translation.draft_ids`."""
        self._proposer = proposer
        self._translation = translation
        self._lengths: dict[int, _Lengths] = {}

    def open(self, session: OpenSession) -> None:
        """See `Proposer.open`; `num_prompt_tokens`, which nobody reads, stays the target's."""
        self.close(session.session_id)
        token_ids = self._translation.read(session.token_ids)
        self._proposer.open(replace(session, token_ids=token_ids))
        self._lengths[session.session_id] = _Lengths(session, len(token_ids))

    def commit(self, commit: Commit) -> None:
        """See `Proposer.commit`."""
        lengths = self._lengths.get(commit.session_id)
        if lengths is None:
            raise unknown_session(commit.session_id)
        token_ids = self._translation.read(commit.token_ids)
        if isinstance(self._proposer, FollowsOthers) and not self._translation.shares(commit):
            # The draft may have proposed the same text, in tokens that the target does not have.
            self._proposer.drop_ahead(commit.session_id)
        is_next = commit.position == lengths.target
        position = lengths.draft if is_next else _MISSED
        try:
            self._proposer.commit(replace(commit, position=position, token_ids=token_ids))
        except SessionRejectedError:
            del self._lengths[commit.session_id]
            raise
        lengths.extend(commit, len(token_ids))

    def close(self, session_id: int) -> None:
        """See `Proposer.close`."""
        if self._lengths.pop(session_id, None) is not None:
            self._proposer.close(session_id)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        """See `Proposer.propose`."""
        return [self._written(proposal) for proposal in self._proposer.propose(session_ids)]

    def work(self) -> bool:
        """See `Proposer.work`."""
        return self._proposer.work()

    def worked_for(self) -> Collection[int]:
        """See `TellsWork`."""
        return self._proposer.worked_for() if isinstance(self._proposer, TellsWork) else ()

    def take_ahead(self) -> list[Proposal]:
        """See `DraftsAhead`."""
        if not isinstance(self._proposer, DraftsAhead):
            return []
        ahead = self._proposer.take_ahead()
        return [
            self._written(proposal) for proposal in ahead if proposal.session_id in self._lengths
        ]

    def leave_out(self, session_id: int, outcomes: Collection[Outcome]) -> None:
        """See `DraftsAhead`."""
        lengths = self._lengths.get(session_id)
        if lengths is None or not isinstance(self._proposer, DraftsAhead):
            return
        offset = lengths.draft - lengths.target
        read = ((position, self._translation.read((last,))) for position, last in outcomes)
        self._proposer.leave_out(
            session_id, [(position + offset, last[0]) for position, last in read if len(last) == 1]
        )

    def limit_fan_out(self, most: int) -> None:
        """See `LimitsFanOut`."""
        if isinstance(self._proposer, LimitsFanOut):
            self._proposer.limit_fan_out(most)

    def take_evicted(self) -> list[int]:
        """See `Proposer.take_evicted`."""
        evicted = self._proposer.take_evicted()
        for session_id in evicted:
            self._lengths.pop(session_id, None)
        return evicted

    def _written(self, proposal: Proposal) -> Proposal:
        lengths = self._lengths[proposal.session_id]
        q = proposal.distributions
        token_ids = self._translation.write(np.array(proposal.token_ids, np.int32))
        # What an outcome adds are tokens that both have, so it is as long for both.
        num_added = proposal.position - lengths.draft
        last_token_id = lengths.last_token_id
        if num_added > 0:
            last_token_id = int(self._translation.write(np.array(proposal.last_token_id)))
        return replace(
            proposal,
            position=lengths.target + num_added,
            last_token_id=last_token_id,
            token_ids=tuple(token_ids.tolist()),
            distributions=q and TruncatedDistributions(self._write(q), q.probabilities),
        )

    def _write(self, q: TruncatedDistributions) -> NDArray[np.int32]:
        """The support; columns without probability keep token 0."""
        return np.where(q.probabilities > 0, self._translation.write(q.token_ids), 0)
