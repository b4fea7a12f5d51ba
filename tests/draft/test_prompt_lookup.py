import random

import pytest

from specray.config import PromptLookupConfig
from specray.draft.prompt_lookup import PromptLookup
from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, SamplingSettings


def test_it_proposes_what_followed_as_point_masses() -> None:
    proposer = PromptLookup(PromptLookupConfig(min_ngram=2, max_ngram=4))
    sampled = SamplingSettings(temperature=1.0)
    proposer.open(OpenSession(1, (5, 6, 7, 8, 9, 1), 6, sampled, depth=3))
    proposer.commit(Commit(1, 6, (5, 6), depth=3, sent_at_ns=4))
    proposal = proposer.propose([1])[0]
    assert (proposal.token_ids, proposal.distributions) == ((7, 8, 9), None)
    assert proposal.source == "prompt_lookup"


def test_all_that_is_sent_names_the_commit_that_it_follows() -> None:
    """A router takes a draft that never speaks of the latest one for a stalled one."""
    proposer = PromptLookup(PromptLookupConfig(min_ngram=2, max_ngram=4))
    proposer.open(OpenSession(1, (5, 6, 7, 8, 9, 1), 6, SamplingSettings(), depth=3))
    proposer.commit(Commit(1, 6, (5, 6), depth=3, sent_at_ns=4))

    proposals = proposer.propose([1])

    assert len(proposals) > 1
    assert {proposal.commit_sent_at_ns for proposal in proposals} == {4}


def test_it_learns_from_what_was_committed() -> None:
    proposer = PromptLookup(PromptLookupConfig(min_ngram=2, max_ngram=4))
    proposer.open(OpenSession(1, (5,), 1, SamplingSettings(), depth=2))
    proposer.commit(Commit(1, 1, (6, 7, 8, 5), depth=2, sent_at_ns=0))
    assert proposer.propose([1])[0].token_ids == ()
    proposer.commit(Commit(1, 5, (6,), depth=2, sent_at_ns=0))
    assert proposer.propose([1])[0].token_ids == (7, 8)


def test_every_hit_of_the_next_lookup_was_drafted_ahead() -> None:
    """Whatever is committed next, the answer to it had been sent before, or there is none."""
    rng = random.Random(7)
    config = PromptLookupConfig(min_ngram=2, max_ngram=4)
    proposer = PromptLookup(config)
    text = [rng.randrange(4) for _ in range(40)]  # 4 tokens: no more than are listed per place
    proposer.open(OpenSession(1, tuple(text), 40, SamplingSettings(), depth=3))
    num_hits = 0
    ahead: dict[tuple[int, int], tuple[int, ...]] = {}
    for step in range(200):
        # What a verification of the last proposal might have added: some of it, and a token.
        proposed = step and now.token_ids  # noqa: F821
        accepted = list(proposed or ())[: rng.randrange(4)]
        added = (*accepted, rng.randrange(4))
        proposer.commit(Commit(1, len(text), added, depth=3, sent_at_ns=0))
        text += added
        now, *rest = proposer.propose([1])
        assert now.covers_outcomes
        if step:
            sent = ahead.get((len(text), text[-1]), ())
            assert bool(sent) == bool(now.token_ids)
            num_hits += bool(sent)
        ahead = {(p.position, p.last_token_id): p.token_ids for p in rest}
    assert num_hits > 100


def test_not_all_outcomes_can_be_listed_where_one_token_is_a_match() -> None:
    proposer = PromptLookup(PromptLookupConfig(min_ngram=1, max_ngram=4))
    proposer.open(OpenSession(1, (5, 6, 5), 3, SamplingSettings(), depth=2))
    proposer.commit(Commit(1, 3, (6,), depth=2, sent_at_ns=0))
    proposals = proposer.propose([1])
    assert len(proposals) > 1
    assert not any(proposal.covers_outcomes for proposal in proposals)


def answered(
    proposer: PromptLookup, session_id: int, answer: tuple[int, ...], tenant: str = ""
) -> None:
    """A request is opened, answered and closed."""
    sampling = SamplingSettings()
    proposer.open(OpenSession(session_id, (90, 91, 92), 3, sampling, depth=2, tenant=tenant))
    proposer.commit(Commit(session_id, 3, answer, depth=2, sent_at_ns=0))
    proposer.close(session_id)


@pytest.mark.parametrize(("shared_tokens", "expected"), [(0, ()), (100, (7, 8))])
def test_earlier_answers_are_looked_up_only_if_asked_for(
    shared_tokens: int, expected: tuple[int, ...]
) -> None:
    proposer = PromptLookup(PromptLookupConfig(shared_tokens=shared_tokens))
    answered(proposer, 1, (5, 6, 7, 8))
    proposer.open(OpenSession(2, (1, 2, 5), 3, SamplingSettings(), depth=2))
    proposer.commit(Commit(2, 3, (6,), depth=2, sent_at_ns=0))
    now, *_ = proposer.propose([2])
    assert now.token_ids == expected
    assert now.covers_outcomes == (not shared_tokens)


@pytest.mark.parametrize(
    ("tenant", "between_tenants", "expected"),
    [("a", False, (7, 8)), ("b", False, ()), ("b", True, (7, 8))],
)
def test_earlier_answers_are_a_tenants_own_unless_asked_for(
    tenant: str, between_tenants: bool, expected: tuple[int, ...]
) -> None:
    config = PromptLookupConfig(shared_tokens=100, shared_between_tenants=between_tenants)
    proposer = PromptLookup(config)
    answered(proposer, 1, (5, 6, 7, 8), tenant="a")
    proposer.open(OpenSession(2, (1, 2, 5), 3, SamplingSettings(), depth=2, tenant=tenant))
    proposer.commit(Commit(2, 3, (6,), depth=2, sent_at_ns=0))

    assert proposer.propose([2])[0].token_ids == expected


def test_a_session_that_is_opened_again_does_not_count_twice() -> None:
    proposer = PromptLookup(PromptLookupConfig(shared_tokens=100))
    proposer.open(OpenSession(1, (90, 91, 92), 3, SamplingSettings(), depth=2))
    proposer.commit(Commit(1, 3, (5, 6, 7), depth=2, sent_at_ns=0))
    proposer.close(1)  # evicted
    proposer.open(OpenSession(2, (90, 91, 92, 5, 6, 7), 3, SamplingSettings(), depth=2))
    proposer.commit(Commit(2, 6, (8,), depth=2, sent_at_ns=0))
    proposer.close(2)
    answered(proposer, 3, (5, 6, 9))

    proposer.open(OpenSession(4, (1, 2, 5), 3, SamplingSettings(), depth=1))
    proposer.commit(Commit(4, 3, (6,), depth=1, sent_at_ns=0))
    assert proposer.propose([4])[0].token_ids == (9,)  # the later of 7 and 9, each there once


@pytest.mark.parametrize(("is_shareable", "expected"), [(True, (7, 8)), (False, ())])
def test_answers_that_may_not_be_shared_are_not(
    is_shareable: bool, expected: tuple[int, ...]
) -> None:
    proposer = PromptLookup(PromptLookupConfig(shared_tokens=100))
    sampling = SamplingSettings(temperature=1.0)
    proposer.open(OpenSession(1, (90, 91, 92), 3, sampling, depth=2, is_shareable=is_shareable))
    proposer.commit(Commit(1, 3, (5, 6, 7, 8), depth=2, sent_at_ns=0))
    proposer.close(1)
    proposer.open(OpenSession(2, (1, 2, 5), 3, sampling, depth=2))
    proposer.commit(Commit(2, 3, (6,), depth=2, sent_at_ns=0))
    assert proposer.propose([2])[0].token_ids == expected


def test_prompts_are_never_shared() -> None:
    proposer = PromptLookup(PromptLookupConfig(shared_tokens=100))
    answered(proposer, 1, (5, 6))
    proposer.open(OpenSession(2, (1, 2, 90), 3, SamplingSettings(), depth=2))
    proposer.commit(Commit(2, 3, (91,), depth=2, sent_at_ns=0))
    assert proposer.propose([2])[0].token_ids == ()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [((4, 60, 61, 1, 2, 3), 70), ((2, 3, 4, 60, 61, 1, 2, 3), 60)],
    ids=["one token of its own against four", "three against four"],
)
def test_the_likelier_of_two_sources_is_believed(prompt: tuple[int, ...], expected: int) -> None:
    proposer = PromptLookup(PromptLookupConfig(min_ngram=1, shared_tokens=100))
    answered(proposer, 1, (1, 2, 3, 4, 70, 71))
    proposer.open(OpenSession(2, prompt, len(prompt), SamplingSettings(), depth=1))
    proposer.commit(Commit(2, len(prompt), (4,), depth=1, sent_at_ns=0))
    found = proposer.look_up(2)
    assert found.token_ids == (expected,)
    assert found.expected_length == found.rates[0]


def test_not_all_outcomes_are_listed_where_too_much_follows_a_token() -> None:
    proposer = PromptLookup(PromptLookupConfig(min_ngram=2, max_ngram=4))
    text = tuple(token for follower in range(10, 16) for token in (5, follower))
    proposer.open(OpenSession(1, text, len(text), SamplingSettings(), depth=2))
    proposer.commit(Commit(1, len(text), (5,), depth=2, sent_at_ns=0))
    assert not any(proposal.covers_outcomes for proposal in proposer.propose([1]))
    proposer.commit(Commit(1, len(text) + 1, (99,), depth=2, sent_at_ns=0))
    assert proposer.propose([1])[0].covers_outcomes


def test_of_a_long_prompt_the_latest_tokens_are_looked_up() -> None:
    proposer = PromptLookup(PromptLookupConfig(prompt_tokens=4))
    proposer.open(OpenSession(1, (1, 2, 3, 5, 6, 7, 8), 7, SamplingSettings(), depth=1))
    proposer.commit(Commit(1, 7, (1, 2), depth=1, sent_at_ns=0))
    assert proposer.propose([1])[0].token_ids == ()
    proposer.commit(Commit(1, 9, (5, 6), depth=1, sent_at_ns=0))
    assert proposer.propose([1])[0].token_ids == (7,)


def test_the_idlest_session_makes_room() -> None:
    proposer = PromptLookup(PromptLookupConfig(max_tokens=10))
    for session_id in (1, 2, 3):
        proposer.open(OpenSession(session_id, (5, 6, 7), 3, SamplingSettings(), depth=1))
    proposer.commit(Commit(1, 3, (5,), depth=1, sent_at_ns=0))
    assert proposer.take_evicted() == []

    proposer.open(OpenSession(4, (5, 6, 7), 3, SamplingSettings(), depth=1))

    assert proposer.take_evicted() == [2]
    assert proposer.take_evicted() == []
    with pytest.raises(SessionRejectedError):
        proposer.commit(Commit(2, 3, (5,), depth=1, sent_at_ns=0))
    proposer.commit(Commit(1, 4, (6,), depth=1, sent_at_ns=0))
    assert proposer.take_evicted() == [3]


def test_a_tenants_many_sessions_leave_anothers_alone() -> None:
    proposer = PromptLookup(PromptLookupConfig(max_tokens=10))
    tenants = ("modest", "greedy", "greedy", "greedy", "greedy")
    for session_id, tenant in enumerate(tenants):
        session = OpenSession(session_id, (5, 6, 7), 3, SamplingSettings(), depth=1, tenant=tenant)
        proposer.open(session)

    assert proposer.take_evicted() == [1, 2]


def test_a_session_alone_may_be_as_long_as_it_likes() -> None:
    proposer = PromptLookup(PromptLookupConfig(max_tokens=2))
    proposer.open(OpenSession(1, (5, 6, 7), 3, SamplingSettings(), depth=1))
    proposer.commit(Commit(1, 3, (5, 6), depth=1, sent_at_ns=0))

    assert proposer.take_evicted() == []
    assert proposer.propose([1])[0].token_ids == (7,)
