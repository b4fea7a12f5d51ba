"""Who goes on where a model stopped, that it is prepared for, and that the output stays exact."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specray.config import PromptLookupConfig
from specray.draft.extension import Extend, Further, extended
from specray.draft.hybrid import HybridProposer
from specray.draft.ngrams import NgramProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.models.ngrams import NgramModel, load_ngrams
from specray.types import Extension, Proposal, TruncatedDistributions
from tests.draft.test_ahead import DEPTH, Target, branches_of
from tests.draft.test_hybrid import (
    ALPHA,
    FRESH,
    GREEDY,
    REPETITIVE,
    SAMPLED,
    Drawing,
    Scripted,
    begin,
    opened,
    p_value,
)
from tests.draft.test_model import scratch_greedy
from tests.draft.tiny_models import Pair
from tests.models.test_ngrams import NGRAMS, write_ngrams

ROW = TruncatedDistributions(np.array([[3, 5]], np.int32), np.array([[0.5, 0.5]], np.float32))
WIDE = TruncatedDistributions(
    np.array([[1, 2, 4]], np.int32), np.array([[0.5, 0.25, 0.25]], np.float32)
)
GREEDY_PROPOSAL = Proposal(1, 10, 7, (3,), "model", confidences=(0.9,))
DRAWN_PROPOSAL = Proposal(1, 10, 7, (3,), "model", ROW)


def test_a_proposal_goes_on_with_what_it_ships_for_each_token() -> None:
    greedy = extended(GREEDY_PROPOSAL, Further((4, 5), "ngram", (0.4, 0.3)))
    assert (greedy.token_ids, greedy.confidences) == ((3, 4, 5), (0.9, 0.4, 0.3))
    assert (greedy.source, greedy.extension) == ("model", Extension(1, "ngram"))

    drawn = extended(DRAWN_PROPOSAL, Further((4,), "ngram", (), WIDE))
    assert (drawn.token_ids, drawn.confidences) == ((3, 4), ())
    assert drawn.distributions is not None
    assert drawn.distributions.token_ids.tolist() == [[3, 5, 0], [1, 2, 4]]
    assert drawn.distributions.probabilities.tolist() == [[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]


@pytest.mark.parametrize(
    ("proposal", "further"),
    [
        (GREEDY_PROPOSAL, None),
        (GREEDY_PROPOSAL, Further((), "ngram", ())),
        (replace(GREEDY_PROPOSAL, token_ids=(), confidences=()), Further((4,), "ngram", (0.5,))),
        (replace(GREEDY_PROPOSAL, confidences=()), Further((4,), "ngram", (0.5,))),
        (DRAWN_PROPOSAL, Further((4,), "prompt_lookup", (0.5,))),  # it could not say what from
        (GREEDY_PROPOSAL, Further((4,), "ngram", (), WIDE)),
    ],
)
def test_what_can_not_be_shipped_is_left_out(proposal: Proposal, further: Further | None) -> None:
    assert extended(proposal, further) == proposal


# Who goes on


class Short(Scripted):
    """A model that leaves it to others to go on."""

    extend: Extend

    def extend_by(self, extend: Extend) -> None:
        self.extend = extend


@pytest.fixture
def ngrams(tmp_path: Path) -> NgramModel:
    loaded = load_ngrams(write_ngrams(tmp_path, NGRAMS))
    assert loaded is not None
    return loaded


@pytest.fixture
def model() -> Short:
    return Short()


@pytest.fixture
def proposer(model: Short, ngrams: NgramModel) -> HybridProposer:
    quick = NgramProposer(ngrams, np.random.default_rng(1))
    return HybridProposer(PromptLookup(PromptLookupConfig()), model, quick)


def test_a_copy_goes_on_where_there_is_one_and_ngrams_elsewhere(
    proposer: HybridProposer, model: Short
) -> None:
    begin(proposer, 1, (*REPETITIVE, 11))
    copied = model.extend(1, (1, 2, 3), 2)
    assert copied is not None
    assert (copied.source, tuple(copied.token_ids)) == ("prompt_lookup", (4, 5))

    guessed = model.extend(1, (50, 0), 2)
    assert guessed is not None
    assert (guessed.source, tuple(guessed.token_ids)) == ("ngram", (1, 2))
    assert guessed.confidences == pytest.approx((0.6, 0.9), abs=1e-3)
    assert guessed.distributions is None


def test_sampled_requests_go_on_with_what_was_drawn(proposer: HybridProposer, model: Short) -> None:
    proposer.open(opened(1, REPETITIVE, SAMPLED))
    further = model.extend(1, (0,), 2)
    assert further is not None
    assert further.source == "ngram"
    assert further.distributions is not None
    assert len(further.distributions) == len(further.token_ids) == 2


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (("model",), None),
        (("model", "prompt_lookup"), "prompt_lookup"),
        (("model", "ngram"), "ngram"),
    ],
)
def test_only_sources_that_are_in_use_go_on(
    proposer: HybridProposer, model: Short, sources: tuple[str, ...], expected: str | None
) -> None:
    begin(proposer, 1, (*REPETITIVE, 0, 1, 0, 1, 0, 1, 0))
    proposer.sources = frozenset(sources)  # type: ignore[arg-type]
    further = model.extend(1, (1, 0), 2)
    assert (further.source if further else None) == expected


# What is prepared for


SEVENS = (7,) * DEPTH


def following(model: Pair) -> Target:
    """A target whose session has some tokens of a continuation, but not all."""
    target = Target(model.model, fan_out=64)
    target.proposer.extend_by(lambda _, __, num: Further(SEVENS[:num], "ngram", (0.4,) * num))
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.proposer.follow(1, (5, 17))
    target.work(2)
    return target


def test_a_half_done_continuation_goes_on_and_all_of_it_is_drafted_ahead_for(
    llama_pass: Pair,
) -> None:
    target = following(llama_pass)
    outcome, num_own = max(branches_of(target).items(), key=lambda item: item[1])
    assert 0 < num_own < DEPTH
    target.commit(1, *outcome)
    partial = target.proposer.take_partial(1)
    assert partial is not None
    own = scratch_greedy(llama_pass.reference, target.texts[1], num_own)
    assert partial.token_ids == (*own, *SEVENS[num_own:])
    assert partial.extension == Extension(num_own, "ngram")
    assert len(partial.confidences) == DEPTH

    target.ahead[1].clear()
    target.work()
    outcomes = [
        (*partial.token_ids[: position - len(target.texts[1]) - 1], added)
        for position, added in target.ahead[1]
    ]
    assert max(map(len, outcomes)) - 1 > num_own  # where what went on is accepted, too
    for outcome in outcomes:
        ahead = target.after(1, *outcome)
        assert ahead is not None
        text = [*target.texts[1], *outcome]
        assert ahead.token_ids == scratch_greedy(llama_pass.reference, text, DEPTH)
        assert ahead.extension is None

    target.commit(1, *max(outcomes, key=len))  # what went on was right
    assert target.proposer.is_answered(1)
    target.work()
    session = target.proposer._store.get(1)
    assert session is not None
    assert session.num_cached == len(session)


def test_what_leaves_early_goes_on_from_all_tokens_before_it(llama_pass: Pair) -> None:
    asked: list[tuple[tuple[int, ...], int]] = []

    def further(_session_id: int, behind: Sequence[int], num: int) -> Further:
        asked.append((tuple(behind), num))
        return Further(SEVENS[:num], "ngram", (0.4,) * num)

    target = following(llama_pass)
    ahead = target.proposer._ahead
    target.proposer.extend_by(further)
    followed = ahead._followed[1]
    unsent = followed.unsent
    assert len(unsent) > 1
    expected = [(b.behind, DEPTH - len(b.token_ids)) for b in unsent]
    sent = ahead._send(unsent)
    assert asked == [(behind, num) for behind, num in expected if num]
    for branch, proposal in zip(unsent, sent, strict=True):
        assert len(proposal.token_ids) == DEPTH
        num_accepted = proposal.position - len(target.texts[1]) - 1
        behind = (*(5, 17)[:num_accepted], proposal.last_token_id, *branch.token_ids)
        assert branch.behind == behind


def test_what_goes_on_says_nothing_of_the_model(llama_pass: Pair) -> None:
    """How far to draft would follow from what others get wrong."""
    rates = []
    for further in (None, Further(SEVENS, "ngram", (0.4,) * DEPTH)):
        target = following(llama_pass)
        target.proposer.extend_by(lambda _, __, num, more=further: more and cut(more, num))
        outcome, num_own = max(branches_of(target).items(), key=lambda item: item[1])
        target.commit(1, *outcome)
        partial = target.proposer.take_partial(1)
        assert partial is not None
        target.work()
        target.commit(1, *partial.token_ids[:num_own], 3)
        rates.append(target.proposer._ahead.outcomes.survival_rate(GREEDY))
    assert rates[0] == rates[1]


def cut(further: Further, num: int) -> Further:
    return further._replace(
        token_ids=further.token_ids[:num], confidences=further.confidences[:num]
    )


def test_an_answer_goes_on_where_the_model_is_not_asked_for_more(
    llama_pass: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(llama_pass.model)
    target.proposer.extend_by(lambda _, __, num: Further(SEVENS[:num], "ngram", (0.4,) * num))
    monkeypatch.setattr(target.proposer._ahead, "answer_depth", lambda _: 1)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    answer = target.answer(1)
    assert answer is not None
    own = scratch_greedy(llama_pass.reference, target.texts[1], 1)
    assert answer.token_ids == (*own, *SEVENS[1:])
    assert answer.own_token_ids == own
    target.work()
    for position, added in target.ahead[1]:
        behind = (*answer.token_ids[: position - len(target.texts[1]) - 1], added)
        ahead = target.after(1, *behind)
        assert ahead is not None
        text = [*target.texts[1], *behind]
        assert ahead.token_ids == scratch_greedy(llama_pass.reference, text, DEPTH)


# Losslessness


class ShortDrawing(Drawing):
    """Draws one token and has it go on."""

    extend: Extend

    def extend_by(self, extend: Extend) -> None:
        self.extend = extend

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        proposals = []
        for proposal in super().propose(session_ids):
            own = proposal.prefix(1)
            num_left = len(proposal.token_ids) - 1
            further = self.extend(proposal.session_id, own.token_ids, num_left)
            proposals.append(extended(own, further))
        return proposals


class Guessing(HybridProposer):
    """One whose n-grams only go on."""

    @property
    def _is_quick(self) -> bool:
        return False

    def _further(self, session_id: int, behind: Sequence[int], depth: int) -> Further | None:
        assert self._quick is not None
        return self._quick.further(session_id, behind, depth)


class Claiming(Guessing):
    """Breaks the rule: goes on with the likeliest tokens as if they were drawn."""

    def _further(self, session_id: int, behind: Sequence[int], depth: int) -> Further | None:
        further = super()._further(session_id, behind, depth)
        if further is None or further.distributions is None:
            return further
        return further._replace(token_ids=further.distributions.token_ids[:, 0].tolist())


def p_value_of(kind: type[HybridProposer], ngrams: NgramModel) -> tuple[float, Counter[str]]:
    rng, used = np.random.default_rng(4), Counter[str]()
    quick = NgramProposer(ngrams, np.random.default_rng(1))
    proposer = kind(PromptLookup(PromptLookupConfig(min_ngram=6)), ShortDrawing(rng), quick)
    return p_value(proposer, used, rng), used


def test_sampled_output_has_the_targets_distribution(ngrams: NgramModel) -> None:
    """Fails once in 10,000 seeds (`ALPHA`)."""
    p, used = p_value_of(Guessing, ngrams)
    assert p > ALPHA
    assert used["model"] > 1000


def test_tokens_that_were_not_drawn_from_what_is_shipped_would_show(ngrams: NgramModel) -> None:
    """The power of the test above."""
    assert p_value_of(Claiming, ngrams)[0] < ALPHA**2


def test_a_model_without_ngrams_beside_it_goes_on_with_copies_only() -> None:
    model = Short()
    proposer = HybridProposer(PromptLookup(PromptLookupConfig()), model)
    begin(proposer, 1, (*REPETITIVE, 11))
    copied = model.extend(1, (1, 2, 3), 2)
    assert copied is not None
    assert copied.source == "prompt_lookup"
    nothing = model.extend(1, FRESH, 2)
    assert nothing is None or not nothing.token_ids
