"""Branches against the same model run from scratch, and against a session of their own."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle, repeat
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

from specray.config import ModelDraftConfig
from specray.draft import compiled_draw
from specray.draft.ahead import DraftAhead
from specray.draft.attention import AttentionCache, CachedRow, NewTokens
from specray.draft.decoding import PlainDecoder
from specray.draft.language_model import LanguageModel
from specray.draft.model import ModelProposer
from specray.draft.pace import Rhythm
from specray.sampling.truncation import BatchSampling, make_race, truncate
from specray.types import Commit, OpenSession, Proposal, SamplingSettings
from tests.draft.test_model import GREEDY, SAMPLED, scratch_greedy, scratch_logits
from tests.draft.tiny_models import MAX_POSITIONS, VOCAB_SIZE, Pair

DEPTH = 3
NUM_DRAWN = 400


class Target:
    """Follows sessions, keeps what was drafted ahead, and commits what it likes."""

    def __init__(
        self,
        model: LanguageModel,
        fan_out: int = 14,
        clock: Callable[[], float] = lambda: 0.0,
        **limits: int,
    ) -> None:
        config = ModelDraftConfig(model="tiny", support=8, fan_out=fan_out, **limits)
        generator = torch.Generator().manual_seed(1)
        self.proposer = ModelProposer(model, config, generator, clock)
        self.texts: dict[int, list[int]] = {}
        self.ahead: dict[int, dict[tuple[int, int], Proposal]] = {}
        self.random = random.Random(0)

    def open(self, session_id: int, length: int, sampling: SamplingSettings = GREEDY) -> None:
        text = [self.random.randrange(VOCAB_SIZE) for _ in range(length)]
        self.texts[session_id], self.ahead[session_id] = text, {}
        self.proposer.open(OpenSession(session_id, tuple(text), length, sampling, DEPTH))
        self.work()

    def commit(
        self, session_id: int, *token_ids: int, depth: int = DEPTH, is_unawaited: bool = False
    ) -> None:
        """A commit after which all is forgotten that extends something else."""
        text = self.texts[session_id]
        commit = Commit(session_id, len(text), token_ids, depth, 5, is_unawaited=is_unawaited)
        self.proposer.commit(commit)
        text += token_ids

    def answer(self, session_id: int) -> Proposal | None:
        """What comes for a session that has just been committed to, if anything does."""
        answers = self.proposer.propose([session_id])
        return answers[0] if answers else None

    def work(self, most: int = 1000) -> None:
        while most and self.proposer.work():
            most -= 1
        for proposal in self.proposer.take_ahead():
            key = (proposal.position, proposal.last_token_id)
            self.ahead[proposal.session_id][key] = proposal

    def after(self, session_id: int, *token_ids: int) -> Proposal | None:
        """What was drafted for a commit before it came; for none, where the text is now."""
        text = (*self.texts[session_id], *token_ids)
        key = (len(text), text[-1])
        return self.ahead[session_id].get(key)


def in_flight(
    model: LanguageModel, sampling: SamplingSettings = GREEDY, num_passes: int = 1000
) -> tuple[Target, Proposal]:
    """A target whose first proposal is out, with its outcomes drafted as far as the passes go."""
    target = Target(model)
    target.open(1, 12, sampling)
    target.commit(1, 9)
    proposal = target.answer(1)
    assert proposal is not None
    target.work(num_passes)
    return target, proposal


def outcomes_of(target: Target, proposal: Proposal) -> list[tuple[int, ...]]:
    """Commits that were drafted for."""
    num = len(target.texts[1])
    return [
        (*proposal.token_ids[: position - num - 1], added) for position, added in target.ahead[1]
    ]


def test_it_says_for_whom_it_has_worked(llama_pass: Pair) -> None:
    target = Target(llama_pass.model)
    for session_id in (1, 2):
        target.open(session_id, 12)
        target.commit(session_id, 9)
    target.answer(2)

    assert target.proposer.work()
    assert {*target.proposer.worked_for()} == {2}
    target.answer(1)
    assert target.proposer.work()
    assert {*target.proposer.worked_for()} == {1, 2}
    target.work()
    assert not target.proposer.worked_for()  # there was nothing to do any more


def test_a_prompt_that_is_read_piece_by_piece_is_work_for_its_session(llama_pass: Pair) -> None:
    proposer = ModelProposer(
        llama_pass.model, ModelDraftConfig(model="tiny"), torch.Generator().manual_seed(1)
    )
    proposer.open(OpenSession(1, (5,) * 140, 140, GREEDY, DEPTH))

    assert proposer.work()
    assert proposer.worked_for() == (1,)


def test_every_branch_is_what_the_model_says_after_its_outcome(any_model: Pair) -> None:
    target, proposal = in_flight(any_model.model)
    outcomes = outcomes_of(target, proposal)
    assert len(outcomes) == 14
    assert len({len(outcome) for outcome in outcomes}) > 1
    for outcome in outcomes:
        ahead = target.after(1, *outcome)
        assert ahead is not None
        text = [*target.texts[1], *outcome]
        assert ahead.token_ids == scratch_greedy(any_model.reference, text, DEPTH)
        assert ahead.distributions is None


def test_what_is_proposed_already_is_not_drafted_again(llama_pass: Pair) -> None:
    target, proposal = in_flight(llama_pass.model)
    for outcome in outcomes_of(target, proposal):
        num_accepted = len(outcome) - 1
        assert outcome[-1:] != proposal.token_ids[num_accepted : num_accepted + 1]


@pytest.mark.parametrize("which", [3, 13])
def test_a_branch_that_is_chosen_becomes_the_session(any_model: Pair, which: int) -> None:
    target, proposal = in_flight(any_model.model)
    outcome = outcomes_of(target, proposal)[which]
    target.commit(1, *outcome)
    assert target.answer(1) is None  # it has been sent
    promoted = target.proposer._store.get(1)
    assert promoted is not None
    assert promoted.num_cached == len(promoted)
    target.work()
    fresh = Target(any_model.model)
    fresh.texts[2], fresh.ahead[2] = list(target.texts[1]), {}
    fresh.proposer.open(OpenSession(2, tuple(target.texts[1]), 13, GREEDY, DEPTH))
    alone = fresh.proposer._store.get(2)
    assert alone is not None
    torch.testing.assert_close(
        promoted.states[:, :, : len(promoted)], alone.states[:, :, : len(promoted)]
    )
    target.commit(1, 3)
    again = target.answer(1)
    if again is not None:
        expected = scratch_greedy(any_model.reference, target.texts[1], DEPTH)
        assert again.token_ids == expected


def test_long_conversations_of_many_sessions_stay_right(any_model: Pair) -> None:
    """Whatever is committed, answers and continuations are the model's."""
    target = Target(any_model.model)
    for session_id in (1, 2, 3):
        target.open(session_id, 5 * session_id)
    num_hits = 0
    for turn in range(45):
        session_id = target.random.choice((1, 2, 3))
        text = target.texts[session_id]
        ahead = [key for key in target.ahead[session_id] if key[0] > len(text)]
        outcome = target.random.choice(ahead) if ahead and turn % 4 else None
        chain = scratch_greedy(any_model.reference, text, DEPTH)
        token_ids: tuple[int, ...] = (target.random.randrange(VOCAB_SIZE),)
        if outcome is not None:
            token_ids = (*chain[: outcome[0] - len(text) - 1], outcome[1])
        known = target.after(session_id, *token_ids)
        target.commit(session_id, *token_ids, depth=target.random.randint(1, DEPTH))
        target.ahead[session_id].clear()
        answer = target.answer(session_id)
        num_hits += known is not None and answer is None
        for proposal in (known, answer):
            if proposal is not None:
                depth = len(proposal.token_ids)
                assert proposal.position == len(target.texts[session_id])
                assert proposal.token_ids == scratch_greedy(
                    any_model.reference, target.texts[session_id], depth
                )
        target.work(target.random.randint(0, 8))
    assert num_hits > 5


def test_a_continuation_that_is_half_done_is_an_answer(llama_pass: Pair) -> None:
    target, proposal = in_flight(llama_pass.model, num_passes=2)
    ahead = target.proposer._ahead
    branch = next(iter(ahead._followed[1].branches.values()))
    outcome = (*proposal.token_ids[: branch.num_accepted], branch.added)
    target.commit(1, *outcome)
    partial = target.answer(1)
    assert partial is not None
    assert partial.token_ids == scratch_greedy(llama_pass.reference, target.texts[1], 2)
    target.work()
    assert target.ahead[1]


def test_the_rest_of_a_continuation_that_was_never_sent_is_an_answer_too(llama_pass: Pair) -> None:
    """Two commits may come at once, the second of which adds what was drafted for the first."""
    target, proposal = in_flight(llama_pass.model, num_passes=2)
    branches = target.proposer._ahead._followed[1].branches.values()
    branch = next(b for b in branches if len(b.token_ids) == 2 and not b.num_sent)
    drafted = tuple(branch.token_ids)
    target.commit(1, *proposal.token_ids[: branch.num_accepted], branch.added)
    rate = target.proposer._ahead._rhythms.of("").verified_rate(was_ahead=False)
    target.commit(1, drafted[0])
    rest = target.answer(1)
    assert rest is not None
    assert rest.token_ids == drafted[1:]
    # What was never sent says nothing of how often answers are in time.
    assert target.proposer._ahead._rhythms.of("").verified_rate(was_ahead=False) == rate


def test_a_step_without_verification_leaves_the_rest_of_the_proposal(llama_pass: Pair) -> None:
    """A proposal that came too late still extends the request if its first token is right."""
    target, proposal = in_flight(llama_pass.model)
    target.commit(1, proposal.token_ids[0])
    assert target.answer(1) is None
    target.ahead[1].clear()
    target.work()
    for position, added in target.ahead[1]:
        accepted = proposal.token_ids[1 : position - len(target.texts[1])]
        text = [*target.texts[1], *accepted, added]
        found = target.ahead[1][position, added].token_ids
        assert found == scratch_greedy(llama_pass.reference, text, len(found))
    assert target.ahead[1]


def test_a_step_that_waits_for_no_answer_has_its_outcomes_drafted_at_once(any_model: Pair) -> None:
    target = Target(any_model.model)
    target.open(1, 12)
    for token_id in (9, 5, 17):
        target.ahead[1].clear()
        target.commit(1, token_id, is_unawaited=True)
        assert target.answer(1) is None
        target.work()
        assert len(target.ahead[1]) == 8  # candidates
        for (position, added), proposal in target.ahead[1].items():
            assert position == len(target.texts[1]) + 1
            text = [*target.texts[1], added]
            assert proposal.token_ids == scratch_greedy(any_model.reference, text, DEPTH)


def test_a_step_that_waits_is_answered_whatever_came_before(llama_pass: Pair) -> None:
    target = Target(llama_pass.model)
    target.open(1, 12)
    for token_id in range(20):  # of which none is verified
        target.commit(1, token_id, is_unawaited=token_id % 2 == 0)
        target.work(1)
        answer = target.answer(1)
        assert (answer is None) == (token_id % 2 == 0)


def test_without_a_fan_out_all_commits_are_answered(llama_pass: Pair) -> None:
    target = Target(llama_pass.model, fan_out=0)
    target.open(1, 12)
    target.commit(1, 9, is_unawaited=True)
    assert target.answer(1) is not None


def test_the_budget_goes_to_the_likeliest_of_all_sessions(llama_pass: Pair) -> None:
    target = Target(llama_pass.model, fan_out=4)
    for session_id in (1, 2, 3):
        target.open(session_id, 8 + session_id)
        target.commit(session_id, 9)
    target.proposer.propose([1, 2, 3])
    target.work()
    counts = [len(target.ahead[session_id]) for session_id in (1, 2, 3)]
    assert sum(counts) == 12
    assert len(set(counts)) > 1


def test_sampled_branches_ship_what_they_were_drawn_from(any_model: Pair) -> None:
    target, proposal = in_flight(any_model.model, SAMPLED)
    for outcome in outcomes_of(target, proposal):
        ahead = target.after(1, *outcome)
        assert ahead is not None
        assert ahead.distributions is not None
        text = [*target.texts[1], *outcome]
        for row, token_id in enumerate(ahead.token_ids):
            logits = scratch_logits(any_model.reference, text).unsqueeze(0)
            expected = truncate(logits, BatchSampling.of([SAMPLED], torch.device("cpu")), 8)
            q = ahead.distributions
            np.testing.assert_array_equal(q.token_ids[row], expected.token_ids[0])
            np.testing.assert_allclose(q.probabilities[row], expected.probabilities[0], atol=2e-5)
            assert token_id in q.token_ids[row][q.probabilities[row] > 0]
            text.append(token_id)


def test_sampled_branches_are_drawn_afresh(llama_pass: Pair) -> None:
    """One outcome drafted for in many sessions: its first tokens follow the distribution."""
    target = Target(llama_pass.model, fan_out=8)
    prompt = (3, 1, 4, 1, 5)
    drawn: list[Proposal] = []
    for session_id in range(160):
        target.ahead[session_id] = {}
        target.proposer.open(OpenSession(session_id, prompt, 5, SAMPLED, 2))
        target.proposer.commit(Commit(session_id, 5, (9,), 2, 0))
        target.proposer.propose([session_id])
        target.work()
        drawn += target.ahead[session_id].values()
        target.proposer.close(session_id)
    keys = [(p.position, p.last_token_id) for p in drawn if p.position == 7]
    commonest = max(set(keys), key=keys.count)
    same = [p for p in drawn if (p.position, p.last_token_id) == commonest]
    q = same[0].distributions
    assert q is not None
    support = q.probabilities[0] > 0
    counts = [sum(p.token_ids[0] == i for p in same) for i in q.token_ids[0][support]]
    expected = q.probabilities[0][support].astype(float)
    assert len(same) > 60
    assert chisquare(counts, expected * len(same) / expected.sum()).pvalue > 1e-4


@pytest.mark.parametrize("shares", [False, True], ids=["fresh", "shared numbers"])
def test_branches_depend_on_no_draw_but_their_own(
    llama_pass: Pair, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first tokens of proposals and of two branches behind each that does not survive at all.

    Numbers that a session's rows share would tie them to one another. Fails with probability 3e-4
    for a correct draft.
    """
    numbers = torch.Generator()

    def shared(num_rows: int, support: int, _: torch.Generator) -> torch.Tensor:
        state = numbers.get_state()
        race = make_race(1, support, numbers)
        numbers.set_state(state)
        return race.repeat(num_rows, 1)

    if shares:
        monkeypatch.setattr(compiled_draw, "make_race", shared)
    target = Target(llama_pass.model, fan_out=8)
    firsts: list[dict[object, int]] = []
    for session_id in range(NUM_DRAWN):
        target.ahead[session_id] = {}
        target.proposer.open(OpenSession(session_id, (3, 1, 4, 1, 5), 5, SAMPLED, 2))
        target.proposer.commit(Commit(session_id, 5, (9,), 2, 0))
        numbers.manual_seed(session_id)
        (proposal,) = target.proposer.propose([session_id])
        target.work()
        branches = target.ahead[session_id].values()
        drawn: dict[object, int] = {
            b.last_token_id: b.token_ids[0] for b in branches if b.position == 7
        }
        firsts.append({"proposal": proposal.token_ids[0], **drawn})
        target.proposer.close(session_id)
    counts = Counter(chain.from_iterable(firsts))
    (proposals, _), (one, _), (other, least) = counts.most_common(3)
    assert least > NUM_DRAWN / 3
    pairs = [(proposals, one), (proposals, other), (one, other)]
    p_values = [independence(firsts, *pair) for pair in pairs]
    assert min(p_values) < 1e-8 if shares else min(p_values) > 1e-4


def independence(firsts: Sequence[dict[object, int]], one: object, other: object) -> float:
    """The p-value of their likeliest tokens' coming independently, where both are there."""
    both = np.array([(drawn[one], drawn[other]) for drawn in firsts if {one, other} <= {*drawn}])
    is_likeliest = both == [Counter(column).most_common(1)[0][0] for column in both.T.tolist()]
    table = np.zeros((2, 2))
    np.add.at(table, tuple(is_likeliest.T.astype(int)), 1)
    return float(chi2_contingency(table).pvalue)


def test_branches_give_way_to_sessions(llama_pass: Pair) -> None:
    target = Target(llama_pass.model, max_tokens=160)
    target.open(1, 40)
    target.commit(1, 9)
    target.answer(1)
    target.work()
    assert len(target.ahead[1]) > 2
    target.open(2, 75)
    assert target.proposer.take_evicted() == []
    target.commit(2, 9)
    answer = target.answer(2)
    assert answer is not None
    assert answer.token_ids == scratch_greedy(llama_pass.reference, target.texts[2], DEPTH)


def test_a_pass_copies_no_more_than_the_sessions_may_hold(
    any_model: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(any_model.model, max_tokens=320)
    sizes = []
    make_cache = any_model.model.make_cache

    def measured(rows: Sequence[CachedRow]) -> AttentionCache:
        sizes.append(len(rows) * (max(row.stop for row in rows) + 1))
        return make_cache(rows)

    target.open(1, 60)
    target.commit(1, 9)
    target.answer(1)
    monkeypatch.setattr(any_model.model, "make_cache", measured)
    target.work()
    assert target.ahead[1]
    assert not any_model.model.copies_rows or max(sizes) <= 320


def test_nothing_is_kept_for_sessions_that_go(llama_pass: Pair) -> None:
    target = Target(llama_pass.model)
    free = target.proposer._pool._num_free
    for turn in range(6):
        target.open(1, 20)
        target.commit(1, 9)
        target.answer(1)
        target.work(turn)
        if turn % 2:
            target.commit(1, 4, depth=turn % 3)
    target.proposer.close(1)
    assert target.proposer._pool._num_free == free
    assert not target.proposer.work()


def test_a_session_without_room_ahead_is_answered_all_the_same(llama_pass: Pair) -> None:
    target = Target(llama_pass.model)
    target.open(1, MAX_POSITIONS - 2)
    for token_id in (1, 2, 3):
        target.commit(1, token_id)
        answer = target.answer(1)
        target.work()
        assert answer is not None
        text = target.texts[1]
        depth = max(0, MAX_POSITIONS - len(text) + 1)
        assert answer.token_ids == scratch_greedy(llama_pass.reference, text, min(DEPTH, depth))


def test_nothing_is_drafted_ahead_without_a_fan_out(llama_pass: Pair) -> None:
    target = Target(llama_pass.model, fan_out=0)
    target.open(1, 12)
    target.commit(1, 9)
    assert target.answer(1) is not None
    assert not target.proposer.work()
    assert target.proposer.take_ahead() == []


def test_outcomes_that_others_prepare_for_are_left_out(llama_pass: Pair) -> None:
    target = Target(llama_pass.model)
    target.open(1, 12)
    target.commit(1, 9)
    target.answer(1)
    likeliest = Target(llama_pass.model)
    likeliest.open(1, 12)
    likeliest.commit(1, 9)
    likeliest.answer(1)
    likeliest.work()
    taken = set(list(likeliest.ahead[1])[:3])
    target.proposer.leave_out(1, taken)
    target.work()
    assert len(target.ahead[1]) == 14
    assert not taken & target.ahead[1].keys()


def test_switched_on_only_with_a_fan_out(llama_pass: Pair) -> None:
    decoder = PlainDecoder(llama_pass.model, 8, torch.Generator())
    pool = Target(llama_pass.model).proposer._pool
    assert DraftAhead(llama_pass.model, decoder, pool, 1).is_on
    assert not DraftAhead(llama_pass.model, decoder, pool, 0).is_on


def test_a_session_whose_every_token_is_computed_is_prepared_for(llama_pass: Pair) -> None:
    """The target adds the very token that was drafted last."""
    target = Target(llama_pass.model)
    target.open(1, 12)
    token_id, num_ahead = 9, 0
    for _ in range(20):
        target.ahead[1].clear()
        target.commit(1, token_id, depth=1, is_unawaited=True)
        answer = target.answer(1)
        target.work()
        (token_id,) = scratch_greedy(llama_pass.reference, target.texts[1], 1)
        ahead = target.after(1, token_id)
        if answer is None and ahead is not None:  # else it is what the target has already
            num_ahead += 1
            text = [*target.texts[1], token_id]
            assert ahead.token_ids == scratch_greedy(llama_pass.reference, text, 1)
    assert num_ahead > 3


@pytest.mark.parametrize("most", [0, 3, 99])
def test_the_fan_out_may_be_limited_while_it_runs(llama_pass: Pair, most: int) -> None:
    target = Target(llama_pass.model, fan_out=8)
    target.proposer.limit_fan_out(most)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    assert target.answer(1) is not None
    target.work()
    assert len(target.ahead.get(1, ())) == min(most, 8)

    target.proposer.limit_fan_out(8)
    target.ahead[1].clear()
    target.commit(1, 9)
    target.answer(1)
    target.work()
    assert len(target.ahead[1]) == 8


def commit_the_foreseen(target: Target, *, is_unawaited: bool = False) -> int:
    """Commits what was answered ahead, and forgets it; how long the session is."""
    text = target.texts[1]
    position, added = next(key for key in target.ahead[1] if key[0] == len(text) + 1)
    target.ahead[1].clear()
    target.commit(1, added, is_unawaited=is_unawaited)
    assert target.answer(1) is None
    return position


@pytest.mark.parametrize("is_unawaited", [False, True])
def test_an_answer_that_was_sent_ahead_is_never_followed_by_silence(
    llama_pass: Pair, is_unawaited: bool
) -> None:
    """A router takes a draft that owes for a second for a stalled one."""
    target, _ = in_flight(llama_pass.model)
    target.proposer.limit_fan_out(0)
    position = commit_the_foreseen(target, is_unawaited=is_unawaited)

    target.work()

    sent = [(p.position, p.token_ids, p.commit_sent_at_ns) for p in target.ahead[1].values()]
    assert sent == ([] if is_unawaited else [(position, (), 5)])
    assert not target.proposer.work()


def test_what_follows_an_answer_that_was_sent_ahead_needs_no_empty_proposal(
    llama_pass: Pair,
) -> None:
    target, _ = in_flight(llama_pass.model)
    commit_the_foreseen(target)

    target.work()

    assert target.ahead[1]
    assert all(proposal.token_ids for proposal in target.ahead[1].values())


class Clock:
    """Stands still unless told otherwise."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def branches_of(target: Target) -> dict[tuple[int, ...], int]:
    """The commits that are being drafted for, and how many tokens there are for each."""
    followed = target.proposer._ahead._followed[1]
    proposed = followed.flight.token_ids
    return {
        (*proposed[:num_accepted], added): len(branch.token_ids)
        for (num_accepted, added), branch in followed.branches.items()
    }


def timed(target: Target, clock: Clock, monkeypatch: pytest.MonkeyPatch, each_ms: float) -> None:
    """Passes take 10 ms, and so much more for each of their tokens."""
    compute = target.proposer._model.next_logits

    def take_time(new: Any, cache: AttentionCache) -> torch.Tensor:
        clock.now_s += 0.01 + each_ms / 1e3 * len(new.token_ids)
        return compute(new, cache)

    monkeypatch.setattr(target.proposer._model, "next_logits", take_time)


def delayed(
    target: Target, clock: Clock, monkeypatch: pytest.MonkeyPatch, delays_s: Iterator[float]
) -> None:
    """Opens a session whose passes take 10 ms from its first answer on, and so much more each."""
    timed(target, clock, monkeypatch, 0.0)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.answer(1)
    compute = target.proposer._model.next_logits

    def wait(new: NewTokens, cache: AttentionCache) -> torch.Tensor:
        clock.now_s += next(delays_s)
        return compute(new, cache)

    monkeypatch.setattr(target.proposer._model, "next_logits", wait)


def flights(target: Target, clock: Clock, num: int, flight_s: float, *, was_late: bool) -> float:
    """Commits that come regularly, if possible after a token of what is in flight was accepted.

    Returns:
        For how long the draft worked in the last of them, on the clock.
    """
    text, worked_s = target.texts[1], 0.0
    for _ in range(num):
        began_s = ended_s = clock.now_s
        target.ahead[1].clear()
        while clock.now_s < began_s + flight_s:
            before_s = clock.now_s
            target.work(1)
            if clock.now_s == before_s:
                break
            ended_s = clock.now_s
        worked_s = ended_s - began_s
        clock.now_s = began_s + flight_s
        is_followed = 1 in target.proposer._ahead._followed
        there = [o for o in branches_of(target) if target.after(1, *o)] if is_followed else []
        token_ids = max(there, key=lambda outcome: len(outcome) > 1, default=(9,))
        commit = Commit(1, len(text), token_ids, DEPTH, 5, was_late=was_late)
        target.proposer.commit(commit)
        text += token_ids
        target.answer(1)
    return worked_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(("each_ms", "is_dear"), [(0.01, False), (30.0, True)])
def test_a_pass_takes_what_brings_most_in_its_time(
    llama_pass: Pair,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    each_ms: float,
    *,
    is_dear: bool,
) -> None:
    target = Target(llama_pass.model, fan_out=8, clock=clock)
    timed(target, clock, monkeypatch, each_ms)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.answer(1)
    flights(target, clock, 30, 1.0, was_late=False)  # of which is learnt what rows cost
    target.work(1)
    begun = sum(branches_of(target).values())
    target.work(1)
    num_rows = sum(branches_of(target).values()) - begun
    assert (num_rows <= 3) == is_dear
    assert is_dear or num_rows >= 6


def test_passes_that_made_kernels_say_nothing_of_those_to_come(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(llama_pass.model, fan_out=8, clock=clock)
    delayed(target, clock, monkeypatch, chain([5.0, 5.0], repeat(0.0)))
    target.work(4)  # as a draft does before it is used
    assert clock.now_s > 10
    assert target.proposer._ahead._pass.expected_s(8) == pytest.approx(0.01, rel=0.5)


def test_passes_that_had_to_wait_do_not_make_all_others_forgotten(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(llama_pass.model, fan_out=8, clock=clock)
    delayed(target, clock, monkeypatch, cycle([0.02, 0.0]))
    expected_s = []
    for _ in range(60):
        flights(target, clock, 1, 1.0, was_late=False)
        expected_s.append(target.proposer._ahead._pass.expected_s(4))
    assert min(expected_s[20:]) > 0.7 * max(expected_s[20:])


def test_no_pass_is_run_that_costs_more_than_it_brings(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there is of continuations is sent as it is."""
    target = Target(llama_pass.model, fan_out=8, clock=clock)
    timed(target, clock, monkeypatch, 0.0)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.answer(1)
    flights(target, clock, 30, 1.0, was_late=False)
    target.ahead[1].clear()
    target.work(1)
    begun = branches_of(target)
    assert begun
    assert not target.ahead[1]
    monkeypatch.setattr(Rhythm, "pass_loss", lambda *_, **__: 1e6)
    before_s = clock.now_s
    target.work(2)
    assert clock.now_s == before_s
    assert [len(ahead.token_ids) for ahead in target.ahead[1].values()] == [1] * len(begun)


def test_sessions_that_rest_hold_up_no_pass(
    llama_pass: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is told of those for which nothing is asked: no commit would wait."""
    losses = []
    for num_resting in (0, 10):
        clock = Clock()
        target = Target(llama_pass.model, fan_out=8, clock=clock)
        timed(target, clock, monkeypatch, 0.0)
        for session_id in range(1, 2 + num_resting):
            target.open(session_id, 12, GREEDY)
            target.commit(session_id, 9)
            target.answer(session_id)
        flights(target, clock, 60, 0.1, was_late=False)  # of the first one
        ahead_pass = target.proposer._ahead._pass
        monkeypatch.setattr(ahead_pass, "run", lambda _, __, loss: losses.append(loss))
        target.work(1)
    assert losses[0] > 0
    assert losses[1] < 2 * losses[0]  # each of the ten would count for four


def test_the_likeliest_outcomes_are_drafted_furthest(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(llama_pass.model, fan_out=8, clock=clock)
    timed(target, clock, monkeypatch, 10.0)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.answer(1)
    flights(target, clock, 30, 1.0, was_late=False)
    target.work(3)
    branches = target.proposer._ahead._followed[1].branches.values()
    ordered = sorted(branches, key=lambda branch: -branch.probability)
    assert len(ordered[0].token_ids) > len(ordered[-1].token_ids)


def test_some_of_the_budget_is_kept_for_what_follows_a_whole_proposal(
    llama_pass: Pair, clock: Clock
) -> None:
    """Its candidates are known a pass later than those of the places before it."""
    target = Target(llama_pass.model, fan_out=4, clock=clock)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    for _ in range(12):  # of which is learnt that proposals are accepted whole
        answer = target.answer(1) or target.after(1)
        assert answer is not None
        added = scratch_greedy(llama_pass.reference, [*target.texts[1], *answer.token_ids], 1)
        target.commit(1, *answer.token_ids, *added)
    assert target.answer(1) is not None
    target.work(1)
    assert 0 < len(branches_of(target)) < 4
    target.work()
    assert len(branches_of(target)) == 4


def test_outcomes_that_have_no_room_hold_up_no_others(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(llama_pass.model, fan_out=14, clock=clock, max_tokens=96)
    timed(target, clock, monkeypatch, 50.0)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.answer(1)
    flights(target, clock, 8, 2.0, was_late=False)  # from now on a pass has a row or two
    target.work()
    branches = branches_of(target)
    assert 0 < len(branches) < 14
    assert set(branches.values()) == {DEPTH}


def test_what_has_not_left_yet_is_not_drafted_for(llama_pass: Pair) -> None:
    """The outcomes' rows follow its tokens; how long they take may not decide when it leaves."""
    target, proposal = in_flight(llama_pass.model, num_passes=2)
    branch = next(iter(target.proposer._ahead._followed[1].branches.values()))
    assert not branch.num_sent
    target.commit(1, *proposal.token_ids[: branch.num_accepted], branch.added)
    target.work(3)
    assert not branches_of(target)
    assert target.answer(1) is not None
    target.work(3)
    assert branches_of(target)


def test_a_pass_that_would_outlast_the_flight_is_not_begun_for_many_tokens(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(llama_pass.model, fan_out=8, clock=clock)
    timed(target, clock, monkeypatch, 50.0)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.answer(1)
    flights(target, clock, 30, 0.2, was_late=False)
    target.proposer.follow(1, (5, 17, 3, 8))  # 0.26 s to compute, and the place behind them
    before_s = clock.now_s
    target.work(1)
    assert clock.now_s - before_s < 0.2


def test_what_is_left_of_a_proposal_says_nothing_of_when_to_leave(
    llama_pass: Pair, clock: Clock
) -> None:
    """It has been at the target since before; that a step did not verify it is no lateness."""
    target = Target(llama_pass.model, clock=clock)
    target.open(1, 12)
    target.commit(1, 9)
    proposal = target.answer(1)
    assert proposal is not None
    clock.now_s += 0.1
    target.commit(1, proposal.token_ids[0])
    assert target.proposer.is_answered(1)  # by the rest
    clock.now_s += 0.1
    commit = Commit(1, len(target.texts[1]), (proposal.token_ids[1],), DEPTH, 5, was_late=True)
    target.proposer.commit(commit)
    assert target.proposer._ahead._rhythms.of("")._lead_s == 0.0


def test_what_was_late_leaves_earlier_the_next_time(
    llama_pass: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit tells that what it verified came only when its step might have begun."""
    worked_s = []
    for was_late in (False, True):
        clock = Clock()
        target = Target(llama_pass.model, fan_out=14, clock=clock)
        timed(target, clock, monkeypatch, 10.0)
        target.open(1, 12, GREEDY)
        target.commit(1, 9)
        target.answer(1)
        worked_s.append(flights(target, clock, 30, 0.2, was_late=was_late))
    assert 0 < worked_s[1] < 0.75 * worked_s[0] < 0.75 * 0.2


def test_what_there_is_goes_out_before_a_commit_that_is_due(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(llama_pass.model, fan_out=8, clock=clock)
    target.open(1, 12, GREEDY)
    timed(target, clock, monkeypatch, 0.0)
    for _ in range(20):  # the third pass, if there is one, runs while the commit comes
        target.commit(1, 9)
        target.answer(1)
        answered_s = clock.now_s
        target.ahead[1].clear()
        while clock.now_s < answered_s + 0.025:
            before_s = clock.now_s
            target.work(1)
            if clock.now_s == before_s:
                clock.now_s = answered_s + 0.025
    assert clock.now_s == answered_s + 0.025  # the commit did not have to wait
    outcome, num_tokens = max(branches_of(target).items(), key=lambda item: item[1])
    assert 0 < num_tokens < DEPTH
    partial = target.after(1, *outcome)
    assert partial is not None
    text = [*target.texts[1], *outcome]
    assert partial.token_ids == scratch_greedy(llama_pass.reference, text, num_tokens)
    target.commit(1, *outcome)
    assert target.answer(1) is None  # it has been sent


def work_until(target: Target, clock: Clock, end_s: float) -> None:
    """Works piece by piece up to a time on the clock, or as long as there is something to do."""
    for _ in range(12):
        if clock.now_s < end_s - 1e-6:
            target.work(1)


def sent_in_part(clock: Clock, monkeypatch: pytest.MonkeyPatch, pair: Pair) -> Target:
    """One with continuations that have left and grew by a token since, in what may be in time."""
    target = Target(pair.model, fan_out=8, clock=clock)
    target.open(1, 12, GREEDY)
    timed(target, clock, monkeypatch, 0.0)
    for _ in range(20):  # flights of 25 ms, in which two passes end
        target.commit(1, 9)
        target.answer(1)
        began_s = clock.now_s
        work_until(target, clock, began_s + 0.02)
        clock.now_s = began_s + 0.025
    target.commit(1, 9)
    target.answer(1)
    target.ahead[1].clear()
    return target


def test_what_there_is_leaves_before_a_pass_that_may_be_the_last(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that comes while it runs finds a token at least; one that comes later, two."""
    target = sent_in_part(clock, monkeypatch, llama_pass)
    seen: list[tuple[float, int]] = []  # when so many tokens of the likeliest had left
    began_s = clock.now_s
    for _ in range(8):
        target.work(1)
        if target.ahead[1]:
            most = max(len(proposal.token_ids) for proposal in target.ahead[1].values())
            seen.append((round(clock.now_s - began_s, 3), most))
    assert (0.01, 1) in seen
    assert seen[-1] == (0.02, 2)
    proposed = target.proposer._ahead._followed[1].flight.token_ids
    for (position, added), proposal in target.ahead[1].items():
        accepted = proposed[: position - len(target.texts[1]) - 1]
        text = [*target.texts[1], *accepted, added]
        num_tokens = len(proposal.token_ids)
        assert proposal.token_ids == scratch_greedy(llama_pass.reference, text, num_tokens)


def test_of_what_has_left_in_part_that_part_is_in_flight(
    llama_pass: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = sent_in_part(clock, monkeypatch, llama_pass)
    work_until(target, clock, clock.now_s + 0.02)  # both passes, not what leaves after them
    left = {k: proposal for k, proposal in target.ahead[1].items() if len(proposal.token_ids) == 1}
    branches = target.proposer._ahead._followed[1].branches
    (position, added), proposal = next(
        (key, left[key])
        for key in left
        if len(branches[key[0] - len(target.texts[1]) - 1, key[1]].token_ids) == 2
    )
    assert position == len(target.texts[1]) + 1
    target.commit(1, added)
    assert target.answer(1) is None  # it has been sent
    target.ahead[1].clear()
    clock.now_s += 0.001
    target.work(4)
    followed = target.proposer._ahead._followed[1]
    assert followed.flight.token_ids == proposal.token_ids
    numbers = set()
    for num_accepted, token_id in followed.branches:
        text = [*target.texts[1], *proposal.token_ids[:num_accepted], token_id]
        drafted = tuple(followed.branches[num_accepted, token_id].token_ids)
        assert drafted == scratch_greedy(llama_pass.reference, text, len(drafted))
        numbers.add(num_accepted)
    assert numbers == {0, 1}


@pytest.mark.parametrize("num_more", [1, 2])
def test_what_a_target_adds_behind_all_it_was_sent_leaves_the_rest_of_a_branch(
    any_model: Pair, num_more: int
) -> None:
    """It guesses by itself there, as the model has; all that was drafted beyond is in flight."""
    target, proposal = in_flight(any_model.model)
    branches = target.proposer._ahead._followed[1].branches
    key = next(key for key in branches if key[0] == len(proposal.token_ids))
    drafted = tuple(branches[key].token_ids)
    assert len(drafted) == DEPTH
    target.ahead[1].clear()
    target.commit(1, *proposal.token_ids, key[1], *drafted[:num_more])
    assert target.answer(1) is None  # the target has it
    followed = target.proposer._ahead._followed[1]
    assert followed.flight.token_ids == drafted[num_more:]
    target.work()
    assert target.ahead[1]
    for (position, added), after in target.ahead[1].items():
        accepted = drafted[num_more:][: position - len(target.texts[1]) - 1]
        text = [*target.texts[1], *accepted, added]
        num_tokens = len(after.token_ids)
        assert after.token_ids == scratch_greedy(any_model.reference, text, num_tokens)


@pytest.mark.parametrize(
    ("num_sent", "more"), [(1, 1), (1, 2), (2, 3), (3, 3)], ids=lambda number: str(number)
)
def test_where_a_target_has_added_all_that_it_was_sent_it_is_answered(
    llama_pass: Pair, num_sent: int, more: int
) -> None:
    target, proposal = in_flight(llama_pass.model)
    branches = target.proposer._ahead._followed[1].branches
    key = next(key for key in branches if key[0] == len(proposal.token_ids))
    branches[key].num_sent = num_sent
    target.commit(1, *proposal.token_ids, key[1], *branches[key].token_ids[:more])
    answer = target.answer(1)
    assert answer is not None
    num_tokens = len(answer.token_ids)
    assert answer.token_ids == scratch_greedy(llama_pass.reference, target.texts[1], num_tokens)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize(("num_sent", "num_left"), [(2, 1), (3, 2), (0, 2)])
def test_of_a_branch_that_a_target_has_begun_by_itself_what_was_sent_is_in_flight(
    llama_pass: Pair, num_sent: int, num_left: int, sampling: SamplingSettings
) -> None:
    """Or, of one that was never sent, all: it is the answer."""
    target, proposal = in_flight(llama_pass.model, sampling)
    branches = target.proposer._ahead._followed[1].branches
    key = next(key for key in branches if key[0] == len(proposal.token_ids))
    drafted, shipped = tuple(branches[key].token_ids), branches[key].candidates
    branches[key].num_sent = num_sent
    target.commit(1, *proposal.token_ids, key[1], drafted[0])
    answer = target.answer(1)
    flight = target.proposer._ahead._followed[1].flight
    assert flight.token_ids == drafted[1 : 1 + num_left]
    assert (answer is not None) == (num_sent == 0)
    if answer is not None:
        assert answer.token_ids == flight.token_ids
        q = answer.distributions
        assert (q is None) == sampling.is_greedy
        assert q is None or (q.probabilities == shipped.probabilities[1 : 1 + num_left]).all()


def test_a_target_that_adds_something_else_is_answered(llama_pass: Pair) -> None:
    target, proposal = in_flight(llama_pass.model)
    branches = target.proposer._ahead._followed[1].branches
    key = next(key for key in branches if key[0] == len(proposal.token_ids))
    wrong = (branches[key].token_ids[0] + 1) % VOCAB_SIZE
    target.commit(1, *proposal.token_ids, key[1], wrong)
    answer = target.answer(1)
    assert answer is not None
    num_tokens = len(answer.token_ids)
    assert answer.token_ids == scratch_greedy(llama_pass.reference, target.texts[1], num_tokens)


def test_what_was_sent_and_then_gave_way_is_not_drawn_anew(llama_pass: Pair) -> None:
    target, _ = in_flight(llama_pass.model)
    sent = set(target.ahead[1])
    assert sent
    assert target.proposer._ahead.drop_all()
    target.ahead[1].clear()
    target.work()
    assert target.ahead[1]  # others
    assert not sent & set(target.ahead[1])


def test_what_a_target_adds_behind_all_it_was_sent_shows_that_all_was_right(
    llama_pass: Pair,
) -> None:
    target, proposal = in_flight(llama_pass.model)
    ahead = target.proposer._ahead
    before = ahead.outcomes.survival_rate(GREEDY)
    target.commit(1, *proposal.token_ids, 1, 2, 3)
    assert ahead.outcomes.survival_rate(GREEDY) > before
    assert target.answer(1) is not None


@pytest.mark.parametrize("num_tokens", [0, 1, 4])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_what_others_propose_is_drafted_ahead_for(
    any_model: Pair, sampling: SamplingSettings, num_tokens: int
) -> None:
    target = Target(any_model.model)
    target.open(1, 12, sampling)
    target.commit(1, 9)
    theirs = (5, 17, 3, 8)[:num_tokens]
    target.proposer.follow(1, theirs)
    assert target.proposer.is_answered(1)
    assert target.answer(1) is None
    target.work()
    outcomes = [
        (*theirs[: position - len(target.texts[1]) - 1], added)
        for position, added in target.ahead[1]
    ]
    assert len(outcomes) >= 8
    assert len({len(outcome) for outcome in outcomes}) > 1 or num_tokens == 0
    for outcome in outcomes:
        text = [*target.texts[1], *outcome]
        ahead = target.after(1, *outcome)
        assert ahead is not None
        if sampling.is_greedy:
            assert ahead.token_ids == scratch_greedy(any_model.reference, text, DEPTH)
        else:
            assert ahead.distributions is not None
    target.commit(1, *outcomes[-1])
    assert target.proposer.is_answered(1)
    target.work()
    fresh = target.proposer._store.get(1)
    assert fresh is not None
    assert fresh.num_cached == len(fresh)


def test_a_follower_that_has_not_got_far_gives_what_it_has(llama_pass: Pair) -> None:
    target = Target(llama_pass.model)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.proposer.follow(1, (5, 17))
    target.commit(1, 5)  # before it has scored anything
    assert not target.proposer.is_answered(1)
    assert target.proposer.take_partial(1) is None
    target.proposer.follow(1, (5, 17))
    target.work(3)
    outcome, num_tokens = max(branches_of(target).items(), key=lambda item: item[1])
    assert 0 < num_tokens < DEPTH
    target.commit(1, *outcome)
    partial = target.proposer.take_partial(1)
    assert partial is not None
    expected = scratch_greedy(llama_pass.reference, target.texts[1], DEPTH)
    assert partial.token_ids == expected[:num_tokens]
    assert target.proposer.take_partial(1) is None
    assert target.proposer.is_answered(1)


def test_a_follower_that_knows_all_tokens_already_still_learns_what_may_come_first(
    any_model: Pair,
) -> None:
    """The target has added a token that was in flight, so that nothing is left to compute."""
    target = Target(any_model.model)
    target.open(1, 12, GREEDY)
    target.commit(1, 9)
    target.proposer.follow(1, (5, 17, 3))
    target.work()
    target.commit(1, 5)
    session = target.proposer._store.get(1)
    assert session is not None
    assert session.num_uncached == 0
    target.proposer.follow(1, (8, 2))
    target.ahead[1].clear()
    target.work()
    outcomes = [
        (*(8, 2)[: position - len(target.texts[1]) - 1], added)
        for position, added in target.ahead[1]
    ]
    likeliest = scratch_greedy(any_model.reference, target.texts[1], 1)
    assert likeliest in outcomes
    for outcome in outcomes:
        ahead = target.after(1, *outcome)
        assert ahead is not None
        text = [*target.texts[1], *outcome]
        assert ahead.token_ids == scratch_greedy(any_model.reference, text, DEPTH)
