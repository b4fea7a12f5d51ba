"""A draft with a model: batched, cached, one forward pass per position for all sessions."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch

from specray.config import ModelDraftConfig
from specray.draft.ahead import DraftAhead
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.decoding import Decoder
from specray.draft.fair_share import FairShare
from specray.draft.graphs import make_decoder
from specray.draft.kv_pool import KvPool
from specray.draft.language_model import LanguageModel
from specray.draft.model_session import ModelSession, SessionStore
from specray.draft.outcomes import Outcome
from specray.draft.rollout import Rollout
from specray.draft.session import unknown_session
from specray.draft.sizes import CPU_PREFILL_TOKENS, GPU_PREFILL_TOKENS
from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, Proposal

_SHORT_TOKENS = 64  # that are read at once where a proposal is asked for, of each session
_CATCH_UP_TOKENS = 32  # a session further behind catches up alone, without padding the others


class _Row(NamedTuple):
    session: ModelSession
    depth: int


class ModelProposer:
    """Drafts with a causal language model.

    A session longer than the model's positions, or than the whole cache, is kept but proposes
    nothing. When memory runs out a session is evicted, see `FairShare`; when all are in use, those
    that find no room propose nothing. Nor does one far behind, until `work` has brought it up.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: ModelDraftConfig,
        generator: torch.Generator,
        clock: Callable[[], float] = time.monotonic,
        share: FairShare | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        """Takes the KV memory.

        Args:
            model: the draft.
            config: limits of sessions, memory and shipped distributions.
            generator: randomness of sampled drafts, on the model's device.
            clock: in seconds.
            share: which tenant makes room; all count alike if left out.
            decoder: runs the model's passes; what suits the device if left out.
        """
        self._model = model
        is_cpu = torch.device(model.device).type == "cpu"
        self._prefill_tokens = CPU_PREFILL_TOKENS if is_cpu else GPU_PREFILL_TOKENS
        self._pool = KvPool(model.layout, config.max_tokens, model.dtype, model.device)
        decoder = decoder or make_decoder(model, config, generator)
        self._ahead = DraftAhead(model, decoder, self._pool, config.most_ahead, clock)
        self._store = SessionStore(self._pool, config.max_sessions, self._ahead, share)
        self._max_length = min(model.max_positions, self._pool.capacity)
        self._rollout = Rollout(decoder, shows_candidates=self._ahead.is_on)
        self._outcomes: list[Proposal] = []  # drafted ahead, to be sent
        # Left to `work`, first come first served. Not the sessions: one that is evicted is to free
        # its memory at once.
        self._behind: dict[int, None] = {}
        self._worked_for: Collection[int] = ()

    def open(self, session: OpenSession) -> None:
        """Begins the prefill; raises SessionRejectedError when its tokens are impossible."""
        self.close(session.session_id)
        self._check(session.token_ids)
        opened = ModelSession(session, self._pool.empty())
        self._store.add(opened)
        length = len(opened)
        if length <= self._max_length and self._store.reserve(opened, length, {opened.session_id}):
            self._catch_up(opened)

    def commit(self, commit: Commit) -> None:
        """Extends or rolls back a session; raises SessionRejectedError after a missed commit."""
        session = self._store.get(commit.session_id)
        if session is None:
            raise unknown_session(commit.session_id)
        try:
            self._check(commit.token_ids)
            session.extend(commit)
        except SessionRejectedError:
            self.close(commit.session_id)
            raise
        self._ahead.settle(
            session, commit, lambda room: self._store.reserve(session, room, {session.session_id})
        )
        if commit.depth > 0:
            self._store.use([commit.session_id])  # also where another source answers it
        self._follow(session)

    def close(self, session_id: int) -> None:
        """Gives the session's memory back."""
        self._store.remove(session_id)
        self._behind.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        """Drafts for all sessions at once, as deep as the deepest of them asks.

        Left out are those whose answer was sent ahead: what `work` drafts for them next follows.
        """
        answers = {}
        asking = []
        for session in self._store.use(session_ids):
            partial = self._ahead.take_partial(session)
            if partial is not None:
                answers[session.session_id] = partial
            elif not (session.depth and self._ahead.leave_unanswered(session)):
                asking.append(session)
        rows = [row for row in self._plan(asking) if row.depth > 0]
        # Deepest first: the rows of each pass are then the first ones of the pass before.
        rows.sort(key=lambda row: row.depth, reverse=True)
        if rows:
            answers |= self._draft(rows)
        for session in asking:
            if session.session_id not in answers:
                answers[session.session_id] = session.proposal((), "model")
        return [answers[i] for i in session_ids if i in answers]

    def follow(self, session_id: int, token_ids: Sequence[int]) -> None:
        """See `FollowsOthers`; nothing for a session whose prompt is still being read."""
        session = self._store.get(session_id)
        if session is not None and session.num_uncached <= _CATCH_UP_TOKENS:
            self._ahead.follow(session, token_ids)

    def drop_ahead(self, session_id: int) -> None:
        """See `FollowsOthers`."""
        self._ahead.drop(session_id)

    def is_answered(self, session_id: int) -> bool:
        """See `FollowsOthers`."""
        return self._ahead.is_answered(session_id)

    def take_partial(self, session_id: int) -> Proposal | None:
        """See `FollowsOthers`."""
        session = self._store.get(session_id)
        return None if session is None else self._ahead.take_partial(session)

    def work(self) -> bool:
        """Prefills a little for the session that has waited longest, else drafts ahead.

        Returns whether there is more.
        """
        for session_id in list(self._behind):
            if (session := self._store.get(session_id)) is not None:
                self._catch_up(session)
                self._worked_for = (session_id,)
                return True
            del self._behind[session_id]  # it was evicted
        outcomes = self._ahead.run_pass()
        self._worked_for = self._ahead.computed_for
        self._outcomes += outcomes or ()
        return outcomes is not None

    def worked_for(self) -> Collection[int]:
        """See `TellsWork`."""
        return self._worked_for

    def take_ahead(self) -> list[Proposal]:
        """See `DraftsAhead`."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def limit_fan_out(self, most: int) -> None:
        """See `LimitsFanOut`."""
        self._ahead.limit_fan_out(most)

    def leave_out(self, session_id: int, outcomes: Collection[Outcome]) -> None:
        """See `DraftsAhead`."""
        self._ahead.leave_out(session_id, outcomes)

    def take_evicted(self) -> list[int]:
        """Sessions dropped to make room since the last call."""
        return self._store.take_evicted()

    def _check(self, token_ids: Sequence[int]) -> None:
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._model.vocab_size:
            raise SessionRejectedError(
                f"token ids must lie within the draft's vocabulary of {self._model.vocab_size}: "
                "do draft and target share a tokenizer?"
            )

    def _plan(self, sessions: list[ModelSession]) -> list[_Row]:
        """The sessions' depths, once memory has been found for them; 0 where there is none."""
        needed = {session.session_id for session in sessions}
        rows = []
        most = self._ahead.answer_depth(sessions)
        for session in sessions:
            depth = min(session.depth, most, self._max_length - len(session) + 1)
            # The last drafted token is not fed to the model, so it needs no room.
            if depth > 0 and not self._store.reserve(session, len(session) + depth - 1, needed):
                depth = 0
            if depth > 0 and session.num_uncached > _CATCH_UP_TOKENS:
                is_one_piece = session.num_uncached <= _SHORT_TOKENS
                if is_one_piece or session.session_id not in self._behind:
                    self._catch_up(session)
                depth = 0 if session.session_id in self._behind else depth
            rows.append(_Row(session, depth))
        return rows

    def _follow(self, session: ModelSession) -> None:
        """Leaves a session that falls behind to `work`, though nobody asks for proposals now.

        Else the first proposal that is asked for again would come too late, each time.
        """
        is_behind = session.num_uncached > _CATCH_UP_TOKENS and len(session) <= self._max_length
        if is_behind and self._store.reserve(session, len(session), {session.session_id}):
            self._behind[session.session_id] = None

    def _catch_up(self, session: ModelSession) -> None:
        """Caches the session's next tokens, and leaves the rest to `work` if they are many."""
        room = session.states.shape[2]
        start = session.num_cached
        stop = min(start + self._prefill_tokens, len(session), room)
        cache = self._model.make_cache([CachedRow(session.states, start, stop)])
        device = self._model.device
        token_ids = torch.tensor(session.token_ids[start:stop], device=device)
        positions = torch.arange(start, stop, device=device)
        new = NewTokens(token_ids, positions, [stop - start], [stop])
        self._model.next_logits(new, cache)
        cache.store()
        session.set_cached(stop)
        if session.num_uncached > _CATCH_UP_TOKENS and stop < room:
            self._behind[session.session_id] = None
        else:
            self._behind.pop(session.session_id, None)

    def _draft(self, rows: list[_Row]) -> dict[int, Proposal]:
        sessions, depths = zip(*rows, strict=True)
        drafts = self._rollout.run(sessions, depths)
        proposals = {}
        for session, draft in zip(sessions, drafts, strict=True):
            session.set_cached(len(session), ahead=draft.token_ids[:-1])
            proposal = session.proposal(
                draft.token_ids, "model", draft.distributions, confidences=draft.confidences
            )
            proposals[session.session_id] = proposal
            self._ahead.send(session, draft)
        return proposals
