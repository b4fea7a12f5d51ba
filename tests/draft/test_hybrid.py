"""Which source answers, what is drafted ahead, and that the output stays the target's."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from specray.config import ModelDraftConfig, PromptLookupConfig
from specray.draft.causal_lm import CausalLm
from specray.draft.hybrid import HybridProposer
from specray.draft.model import ModelProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.service import DraftService
from specray.draft.session import Session, unknown_session
from specray.errors import SessionRejectedError
from specray.sampling.reference import verify
from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    SamplingSettings,
    TruncatedDistributions,
)
from tests.target.distributions import chi_square

GREEDY = SamplingSettings()
SAMPLED = SamplingSettings(temperature=1.0)
REPETITIVE = (1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5)
FRESH = (11, 12, 13, 14, 15, 16)


class Scripted:
    """Stands in for a model: proposes the same tokens to everyone, and keeps count of who asked."""

    def __init__(self, token_ids: Sequence[int] = (7, 8, 9)) -> None:
        self.token_ids = token_ids
        self.asked: list[list[int]] = []
        self.evicted: list[int] = []
        self._sessions: dict[int, Session] = {}

    def open(self, session: OpenSession) -> None:
        if 99 in session.token_ids:
            raise SessionRejectedError("no such token")
        self._sessions[session.session_id] = Session(session)

    def commit(self, commit: Commit) -> None:
        if commit.session_id not in self._sessions:
            raise unknown_session(commit.session_id)
        self._sessions[commit.session_id].extend(commit)

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        self.asked.append(list(session_ids))
        sessions = [self._sessions[session_id] for session_id in session_ids]
        return [s.proposal(self.token_ids[: s.depth], "model") for s in sessions]

    def work(self) -> bool:
        return False

    def take_evicted(self) -> list[int]:
        evicted, self.evicted = self.evicted, []
        for session_id in evicted:
            self.close(session_id)
        return evicted


def hybrid(model: object, min_ngram: int = 2) -> HybridProposer:
    return HybridProposer(PromptLookup(PromptLookupConfig(min_ngram=min_ngram)), model)


def opened(session_id: int, tokens: tuple[int, ...], sampling: SamplingSettings = GREEDY):
    return OpenSession(session_id, tokens, len(tokens), sampling, depth=3)


def begin(proposer: HybridProposer, session_id: int, tokens: tuple[int, ...], depth: int = 3):
    """Opens with all but the last token and commits that one."""
    proposer.open(opened(session_id, tokens[:-1]))
    proposer.commit(Commit(session_id, len(tokens) - 1, tokens[-1:], depth, sent_at_ns=5))


def now(proposals: Sequence[Proposal]) -> Proposal:
    return proposals[0]


def test_a_long_copy_is_looked_up_and_the_model_is_not_asked() -> None:
    model = Scripted()
    proposer = hybrid(model)
    begin(proposer, 1, REPETITIVE)

    answer = now(proposer.propose([1]))

    assert (answer.source, answer.token_ids) == ("prompt_lookup", (1, 2, 3))
    assert (answer.position, answer.last_token_id) == (len(REPETITIVE), 5)
    assert answer.commit_sent_at_ns == 5
    assert model.asked == []


def test_the_model_answers_where_there_is_nothing_to_copy() -> None:
    proposer = hybrid(Scripted())
    begin(proposer, 1, FRESH)

    (answer,) = proposer.propose([1])

    assert (answer.source, answer.token_ids) == ("model", (7, 8, 9))


def test_sessions_with_a_copy_do_not_wait_for_the_model() -> None:
    model = Scripted()
    proposer = hybrid(model)
    begin(proposer, 1, FRESH)
    begin(proposer, 2, REPETITIVE)

    first = proposer.propose([1, 2])
    assert {proposal.session_id for proposal in first} == {2}
    assert model.asked == []

    second = proposer.propose([1])
    assert [(proposal.session_id, proposal.source) for proposal in second] == [(1, "model")]


def test_nobody_is_asked_for_a_session_that_wants_nothing() -> None:
    model = Scripted()
    proposer = hybrid(model)
    begin(proposer, 1, FRESH, depth=0)

    (answer,) = proposer.propose([1])

    assert answer.token_ids == ()
    assert model.asked == []


@pytest.mark.parametrize("min_ngram", [1, 2])
def test_warming_up_asks_the_model(min_ngram: int) -> None:
    model = Scripted()

    DraftService(hybrid(model, min_ngram)).warm_up()

    assert len(model.asked) == 2


def test_outcomes_with_a_long_copy_are_drafted_ahead_whoever_answers() -> None:
    model = Scripted((1, 2, 3))
    proposer = hybrid(model)
    begin(proposer, 1, (1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 20, 21))

    answer, *ahead = proposer.propose([1])

    assert (answer.source, answer.token_ids) == ("model", (1, 2, 3))
    assert {proposal.source for proposal in ahead} == {"prompt_lookup"}
    # After all three are accepted and 4 is added, "1 2 3 4" has been seen: 5 and 6 follow.
    last = next(p for p in ahead if p.position == 14 + 4)
    assert (last.last_token_id, last.token_ids[:2]) == (4, (5, 6))
    assert not any(proposal.covers_outcomes for proposal in (answer, *ahead))

    proposer.commit(Commit(1, 14, (1, 2, 3, 4), 3, sent_at_ns=6))
    assert now(proposer.propose([1])).source == "prompt_lookup"
    assert len(model.asked) == 1


def test_what_was_sent_ahead_is_not_drafted_again() -> None:
    """Even if the model has become the better choice meanwhile: the target has its proposal."""
    model = Scripted((1, 2, 3))
    proposer = hybrid(model)
    begin(proposer, 1, (1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 20, 21))
    _, *ahead = proposer.propose([1])
    short = next(p for p in ahead if p.position == 14 + 3)
    assert short.last_token_id == 3
    for other in range(2, 60):  # the model's tokens are always right
        begin(proposer, other, (*FRESH, 30 + other))
        proposer.propose([other])
        proposer.commit(Commit(other, len(FRESH) + 1, (1, 2, 3), 3, sent_at_ns=0))

    proposer.commit(Commit(1, 14, (1, 2, 3), 3, sent_at_ns=6))

    assert now(proposer.propose([1])).source == "prompt_lookup"


def test_a_model_that_is_always_right_is_preferred_to_a_short_copy() -> None:
    short_copy = (50, 51, 52, 53, 60, 61, 50, 51)
    trusted, doubted = hybrid(Scripted((1, 2, 3))), hybrid(Scripted((7, 8, 9)))
    for proposer in (trusted, doubted):
        for session_id in range(2, 60):
            begin(proposer, session_id, (*FRESH, 30))
            proposer.propose([session_id])
            proposer.commit(Commit(session_id, len(FRESH) + 1, (1, 2, 3), 3, sent_at_ns=0))
        begin(proposer, 1, short_copy)

    assert now(trusted.propose([1])).source == "model"
    assert now(doubted.propose([1])).source == "prompt_lookup"


def test_a_source_that_is_switched_off_proposes_nothing() -> None:
    model = Scripted((1, 2, 3))
    proposer = hybrid(model)
    begin(proposer, 1, REPETITIVE)
    begin(proposer, 2, FRESH)

    proposer.sources = frozenset(["model"])
    assert [p.source for p in proposer.propose([1, 2])] == ["model", "model"]

    proposer.sources = frozenset(["prompt_lookup"])
    proposals = proposer.propose([1, 2])
    assert {p.source for p in proposals} == {"prompt_lookup"}
    assert {p.session_id for p in proposals} == {1, 2}
    assert len(model.asked) == 1


def test_a_look_up_steps_in_where_the_model_has_no_room() -> None:
    proposer = hybrid(Scripted(()), min_ngram=1)
    begin(proposer, 1, (50, 51, 60, 50))

    answer = now(proposer.propose([1]))

    assert (answer.source, answer.token_ids) == ("prompt_lookup", (51, 60, 50))


def test_a_session_that_one_source_refuses_is_gone_from_both() -> None:
    proposer = hybrid(Scripted())
    with pytest.raises(SessionRejectedError, match="no such token"):
        proposer.open(opened(1, (1, 99)))
    with pytest.raises(SessionRejectedError, match="not open"):
        proposer.commit(Commit(1, 2, (3,), 3, sent_at_ns=0))


def test_a_session_that_the_model_evicts_is_gone_from_both() -> None:
    model = Scripted()
    proposer = hybrid(model)
    begin(proposer, 1, REPETITIVE)
    model.evicted = [1]

    assert proposer.take_evicted() == [1]
    with pytest.raises(SessionRejectedError, match="not open"):
        proposer.commit(Commit(1, len(REPETITIVE), (1,), 3, sent_at_ns=0))


def test_a_session_that_look_ups_evict_is_gone_from_both() -> None:
    model = Scripted()
    lookup = PromptLookup(PromptLookupConfig(max_tokens=len(REPETITIVE) + 2))
    proposer = HybridProposer(lookup, model)
    begin(proposer, 1, REPETITIVE)
    begin(proposer, 2, FRESH)

    assert proposer.take_evicted() == [1]
    with pytest.raises(SessionRejectedError, match="not open"):
        model.commit(Commit(1, len(REPETITIVE), (1,), 3, sent_at_ns=0))
    assert now(proposer.propose([2])).session_id == 2


def test_the_model_catches_up_with_what_was_copied(llama: PreTrainedModel) -> None:
    """After commits that look-ups answered, the model says what it would have said anyway."""

    def real_model() -> ModelProposer:
        config = ModelDraftConfig(model="tiny", max_tokens=1024)
        return ModelProposer(CausalLm(llama), config, torch.Generator())

    proposer, alone = hybrid(real_model()), real_model()
    begin(proposer, 1, REPETITIVE)
    length = len(REPETITIVE)
    for token_ids in ((1, 2, 3, 4), (5, 1, 2, 3), (4, 5)):
        assert now(proposer.propose([1])).source == "prompt_lookup"
        proposer.commit(Commit(1, length, token_ids, 3, sent_at_ns=0))
        length += len(token_ids)
    proposer.commit(Commit(1, length, (70, 71), 3, sent_at_ns=0))
    answer = now(proposer.propose([1]))

    alone.open(opened(1, (*REPETITIVE, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 70)))
    alone.commit(Commit(1, length + 1, (71,), 3, sent_at_ns=0))
    (expected,) = alone.propose([1])
    assert answer.source == "model"
    assert answer.token_ids == expected.token_ids


# Losslessness: a language of three tokens, where each text's probability is known.

ALPHA = 1e-4  # chance that an exact hybrid fails, were its seed not fixed
NUM_TOKENS = 3  # of the vocabulary
NUM_ANSWERS = 4000
LENGTH = 5  # tokens of an answer that are counted
_SETTING = np.random.default_rng(3)
P = _SETTING.dirichlet(np.full(NUM_TOKENS, 0.8), size=(NUM_TOKENS, NUM_TOKENS))  # by the last two
Q = _SETTING.dirichlet(np.full(NUM_TOKENS, 1.0), size=NUM_TOKENS)  # by the last


def likely_text(length: int) -> tuple[int, ...]:
    """Always the most likely token, so that it is worth copying."""
    text = [0, 1]
    while len(text) < length:
        text.append(int(P[text[-2], text[-1]].argmax()))
    return tuple(text)


PROMPT = likely_text(14)


class Drawing(Scripted):
    """Draws from `Q` and ships it."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng = rng

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return [self._draw(self._sessions[session_id]) for session_id in session_ids]

    def _draw(self, session: Session) -> Proposal:
        token_ids, rows, last = [], [], session.token_ids[-1]
        for _ in range(session.depth):
            rows.append(Q[last].astype(np.float32))
            exact = rows[-1].astype(float)
            last = int(self._rng.choice(NUM_TOKENS, p=exact / exact.sum()))
            token_ids.append(last)
        ids = np.tile(np.arange(NUM_TOKENS, dtype=np.int32), (session.depth, 1))
        return session.proposal(token_ids, "model", TruncatedDistributions(ids, np.stack(rows)))


class Peeking(HybridProposer):
    """Breaks the rule: prefers the copy when the model has drawn another token."""

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        (session_id,) = session_ids
        (drawn,) = self._model.propose(session_ids)
        copied = self._lookup.proposal(session_id, self._lookup.look_up(session_id))
        return [copied if copied.token_ids[:1] != drawn.token_ids[:1] else drawn]


def answer(
    proposer: HybridProposer, session_id: int, used: Counter[str], rng: np.random.Generator
) -> tuple[int, ...]:
    """A target that verifies what was proposed, ahead of time or now."""
    text = list(PROMPT)
    added = (int(rng.choice(NUM_TOKENS, p=P[text[-2], text[-1]])),)
    waiting: dict[tuple[int, int], Proposal] = {}
    proposer.open(opened(session_id, PROMPT, SAMPLED))
    while True:
        proposer.commit(Commit(session_id, len(text), added, 2, sent_at_ns=0))
        text += added
        if len(text) >= len(PROMPT) + LENGTH:
            proposer.close(session_id)
            return tuple(text[len(PROMPT) :][:LENGTH])
        sent = proposer.propose([session_id])
        here = [p for p in sent if p.position == len(text)]
        proposal = waiting.get((len(text), text[-1])) or here[0]
        used[proposal.source + ("" if proposal in here else " ahead")] += 1
        sent += proposer.take_ahead()
        waiting = {(p.position, p.last_token_id): p for p in sent if p.position > len(text)}
        context = [*text, *proposal.token_ids]
        rows = np.array(
            [P[context[i - 2], context[i - 1]] for i in range(len(text), len(context) + 1)]
        )
        added = verify(rows, proposal.token_ids, proposal.distributions, rng).token_ids


def p_value(proposer: HybridProposer, used: Counter[str], rng: np.random.Generator) -> float:
    """Chi-square of the first tokens of many answers against the target's probabilities."""
    counts = Counter(answer(proposer, i, used, rng) for i in range(NUM_ANSWERS))
    texts = list(product(range(NUM_TOKENS), repeat=LENGTH))
    expected = [NUM_ANSWERS * probability(text) for text in texts]
    return chi_square(np.array([counts[text] for text in texts]), np.array(expected))


def probability(text: Sequence[int]) -> float:
    context = [*PROMPT[-2:], *text]
    return float(np.prod([P[tuple(context[i : i + 3])] for i in range(LENGTH)]))


def test_sampled_output_has_the_targets_distribution() -> None:
    used: Counter[str] = Counter()
    rng = np.random.default_rng(4)

    assert p_value(hybrid(Drawing(rng)), used, rng) > ALPHA
    assert min(used["model"], used["prompt_lookup"], used["prompt_lookup ahead"]) > 300


def test_a_choice_by_the_drawn_token_would_show() -> None:
    """The power of the test above."""
    rng = np.random.default_rng(5)
    proposer = Peeking(PromptLookup(PromptLookupConfig(min_ngram=1)), Drawing(rng))

    assert p_value(proposer, Counter(), rng) < ALPHA**2


class Ahead(Scripted):
    """Drafts ahead for the first token's rejection, and does not answer where that has come."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.left_out: dict[int, set[tuple[int, int]]] = {}
        self._added = added
        self._sent: set[tuple[int, int, int]] = set()

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        sessions = [self._sessions[i] for i in session_ids]
        asking = [s for s in sessions if (s.session_id, len(s), s.token_ids[-1]) not in self._sent]
        return super().propose([session.session_id for session in asking])

    def take_ahead(self) -> list[Proposal]:
        keys = [(i, len(session) + 1, self._added) for i, session in self._sessions.items()]
        self._sent.update(keys)
        return [Proposal(*key, (1, 2, 3), "model") for key in keys]

    def worked_for(self) -> Collection[int]:
        return list(self._sessions)

    def leave_out(self, session_id: int, outcomes: Collection[tuple[int, int]]) -> None:
        self.left_out[session_id] = set(outcomes)


def test_what_goes_on_between_answers_is_the_models_work() -> None:
    proposer = hybrid(Ahead(added=20))
    begin(proposer, 1, FRESH)

    assert proposer.worked_for() == [1]
    assert hybrid(Scripted()).worked_for() == ()  # it does not say


def test_the_model_drafts_ahead_for_what_no_look_up_serves() -> None:
    model = Ahead(added=20)
    proposer = hybrid(model)
    text = (*REPETITIVE, *FRESH)
    begin(proposer, 1, text)
    answers = proposer.propose([1])
    pushed = {(p.position, p.last_token_id) for p in answers[1:]}
    assert now(answers).source == "model"
    assert model.left_out[1] == pushed
    ahead = proposer.take_ahead()
    assert [(p.position, p.last_token_id) for p in ahead] == [(len(text) + 1, 20)]


def test_what_the_model_sent_ahead_is_not_answered_again_but_its_outcomes_are() -> None:
    model = Ahead(added=20)
    proposer = hybrid(model)
    text = (*REPETITIVE, *FRESH)
    begin(proposer, 1, text)
    proposer.propose([1])
    proposer.take_ahead()
    proposer.commit(Commit(1, len(text), (20,), 3, sent_at_ns=6))
    after = proposer.propose([1])
    # It sent 1 2 3: if 1 2 is accepted and 3 added, or all and 4, the text is known to go on.
    assert all(p.source == "prompt_lookup" and p.position > len(text) + 1 for p in after)
    assert (len(text) + 5, 4) in {(p.position, p.last_token_id) for p in after}
    assert {p.commit_sent_at_ns for p in after} == {6}
    assert model.asked[-1] == []


def test_an_empty_proposal_takes_no_answers_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model says by one that nothing follows what it has answered ahead."""
    model = Ahead(added=20)
    proposer = hybrid(model)
    text = (*REPETITIVE, *FRESH)
    begin(proposer, 1, text)
    proposer.propose([1])
    proposer.take_ahead()
    proposer.commit(Commit(1, len(text), (20,), 3, sent_at_ns=6))
    empty = Proposal(1, len(text) + 1, 20, (), "model", commit_sent_at_ns=6)
    monkeypatch.setattr(model, "take_ahead", lambda: [empty])
    assert proposer.take_ahead() == [empty]
    after = proposer.propose([1])
    assert (len(text) + 5, 4) in {(p.position, p.last_token_id) for p in after}


def test_what_the_model_sent_ahead_is_not_answered_by_a_copy_that_is_found_later() -> None:
    """The engine asks again for sessions that were left out while others were answered."""
    proposer = hybrid(Ahead(added=20))
    text = (*(5, 20, 6, 7, 8) * 4, 9, 5)
    begin(proposer, 1, text)
    proposer.propose([1])
    proposer.take_ahead()
    proposer.commit(Commit(1, len(text), (20,), 3, sent_at_ns=6))
    for _ in range(2):
        assert all(p.position > len(text) + 1 for p in proposer.propose([1]))
    proposer.commit(Commit(1, len(text) + 1, (6,), 3, sent_at_ns=7))
    assert now(proposer.propose([1])).position == len(text) + 2


def test_how_the_model_did_ahead_is_learnt() -> None:
    """What it sent ahead and was rejected, time and again, makes look-ups preferred to it."""
    model = Ahead(added=20)
    proposer = hybrid(model)
    begin(proposer, 1, (*REPETITIVE, *FRESH))
    length = len(REPETITIVE) + len(FRESH)
    before = proposer._least_length(proposer._lookup.session(1))
    proposer.propose([1])
    proposer.take_ahead()
    for _ in range(12):
        proposer.commit(Commit(1, length, (20,), 3, sent_at_ns=6))
        length += 1
        proposer.propose([1])
        proposer.take_ahead()
    assert proposer._least_length(proposer._lookup.session(1)) < before / 2


# A quick source answers, and the model prepares for what becomes of its answers.


class Quick(Scripted):
    """N-grams' part."""

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return [replace(proposal, source="ngram") for proposal in super().propose(session_ids)]


class Follower(Ahead):
    """A model that takes note of what it is to follow."""

    def __init__(self, added: int = 20) -> None:
        super().__init__(added)
        self.followed: list[tuple[int, tuple[int, ...]]] = []
        self.partial: tuple[int, ...] = ()

    def follow(self, session_id: int, token_ids: Sequence[int]) -> None:
        self.followed.append((session_id, tuple(token_ids)))

    def drop_ahead(self, session_id: int) -> None:
        pass

    def is_answered(self, session_id: int) -> bool:
        session = self._sessions[session_id]
        return (session_id, len(session), session.token_ids[-1]) in self._sent

    def take_partial(self, session_id: int) -> Proposal | None:
        partial, self.partial = self.partial, ()
        return self._sessions[session_id].proposal(partial, "model") if partial else None


def quick_hybrid(model: Follower | None = None) -> tuple[HybridProposer, Follower, Quick]:
    model, quick = model or Follower(), Quick((4, 5, 6))
    return HybridProposer(PromptLookup(PromptLookupConfig(min_ngram=2)), model, quick), model, quick


def test_nobody_waits_for_a_model_that_has_a_quick_source_beside_it() -> None:
    proposer, model, _ = quick_hybrid()
    begin(proposer, 1, FRESH)

    (answer,) = proposer.propose([1])

    assert (answer.source, answer.token_ids) == ("ngram", (4, 5, 6))
    assert model.followed == [(1, (4, 5, 6))]
    assert model.asked == []


def test_the_model_prepares_for_what_becomes_of_copies_too() -> None:
    proposer, model, quick = quick_hybrid()
    begin(proposer, 1, REPETITIVE)

    assert now(proposer.propose([1])).source == "prompt_lookup"
    assert model.followed == [(1, (1, 2, 3))]
    assert quick.asked == []


def test_what_the_model_has_begun_goes_before_the_quick_source() -> None:
    proposer, model, quick = quick_hybrid()
    begin(proposer, 1, FRESH)
    model.partial = (7,)

    (answer,) = proposer.propose([1])

    assert (answer.source, answer.token_ids) == ("model", (7,))
    assert quick.asked == []


def test_what_was_drafted_ahead_is_answered_by_nobody_else() -> None:
    proposer, _, quick = quick_hybrid()
    begin(proposer, 1, FRESH)
    proposer.propose([1])
    proposer.take_ahead()
    proposer.commit(Commit(1, len(FRESH), (20,), 3, sent_at_ns=6))

    assert proposer.propose([1]) == []
    assert len(quick.asked) == 1


def test_either_may_be_switched_off() -> None:
    proposer, model, quick = quick_hybrid()
    begin(proposer, 1, FRESH)

    proposer.sources = frozenset(["ngram"])
    assert now(proposer.propose([1])).source == "ngram"
    assert model.followed == []

    proposer.sources = frozenset(["model"])
    assert now(proposer.propose([1])).source == "model"
    assert len(quick.asked) == 1


def test_a_session_is_gone_from_the_quick_source_too() -> None:
    proposer, model, quick = quick_hybrid()
    begin(proposer, 1, FRESH)
    model.evicted = [1]
    assert proposer.take_evicted() == [1]
    assert quick._sessions == {}
    with pytest.raises(SessionRejectedError, match="no such token"):
        proposer.open(opened(2, (1, 99)))
    assert quick._sessions == {}


class QuickDrawing(Drawing):
    """The same, as n-grams."""

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        return [replace(proposal, source="ngram") for proposal in super().propose(session_ids)]


class FollowingDrawing(Drawing):
    """Draws ahead for each token that may be added first, now and then in time."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._sent: set[tuple[int, int, int]] = set()
        self._following: dict[int, tuple[int, ...]] = {}

    def follow(self, session_id: int, token_ids: Sequence[int]) -> None:
        self._following[session_id] = tuple(token_ids)

    def drop_ahead(self, session_id: int) -> None:
        pass

    def is_answered(self, session_id: int) -> bool:
        session = self._sessions[session_id]
        return (session_id, len(session), session.token_ids[-1]) in self._sent

    def take_partial(self, session_id: int) -> Proposal | None:
        return self._draw(self._sessions[session_id]) if self._rng.random() < 0.2 else None

    def take_ahead(self) -> list[Proposal]:
        ahead = []
        for session_id, proposed in self._following.items():
            session = self._sessions.get(session_id)
            for added in range(NUM_TOKENS):
                if session is None or added == proposed[0] or self._rng.random() < 0.5:
                    continue
                after = Session(opened(session_id, (*session.token_ids, added), SAMPLED))
                after.depth = session.depth
                ahead.append(self._draw(after))
                self._sent.add((session_id, len(after), added))
        self._following.clear()
        return ahead

    def leave_out(self, session_id: int, outcomes: Collection[tuple[int, int]]) -> None:
        pass


def test_sampled_output_has_the_targets_distribution_with_a_quick_source() -> None:
    used: Counter[str] = Counter()
    rng = np.random.default_rng(6)
    lookup = PromptLookup(PromptLookupConfig(min_ngram=2))
    proposer = HybridProposer(lookup, FollowingDrawing(rng), QuickDrawing(rng))

    assert p_value(proposer, used, rng) > ALPHA
    assert min(used["ngram"], used["model"], used["model ahead"], used["prompt_lookup"]) > 300
