"""What a target proposes itself: the right tokens, at a bounded cost, and without any bias."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.config import TargetPluginConfig
from specray.models.ngrams import NGRAM_FILE, NgramModel, load_ngrams
from specray.sampling.reference import verify
from specray.target.answer_memory import AnswerMemory
from specray.target.session import Session
from specray.target.stop_gap import StopGap, make_stop_gap
from specray.types import (
    Proposal,
    SamplingSettings,
    Source,
    SpeculationPolicy,
    TruncatedDistributions,
)
from tests.models.test_ngrams import NGRAMS, write_ngrams
from tests.target.distributions import chi_square

MOST_SCANS, LAST_PAUSE = 16, 32


def session(
    tokens: Sequence[int], session_id: int = 1, tenant: str = "", *, is_shareable: bool = True
) -> Session:
    return Session(
        *(session_id, "r", list(tokens), 1, 10_000, 64, SamplingSettings(temperature=1.0)),
        uses_distributions=True,
        tenant=tenant,
        is_shareable=is_shareable,
    )


def expected(text: Sequence[int], depth: int) -> tuple[int, ...] | None:
    """The slow and obvious way: the longest suffix, its most frequent follower, the latest copy."""
    for length in range(8, 1, -1):
        suffix = text[-length:]
        starts = [i for i in range(len(text) - length) if text[i : i + length] == suffix]
        if len(suffix) == length and starts:
            followers = [text[i + length] for i in starts]
            counts = Counter(followers)
            best = [i for i in starts if counts[text[i + length]] == max(counts.values())]
            period = text[best[-1] + length : best[-1] + length + depth]
            return tuple((period * depth)[:depth])
    return None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 6))
def test_it_copies_what_followed_the_longest_suffix_most_often(text: list[int], depth: int) -> None:
    found = StopGap().find(session(text), depth)

    assert (found and found.token_ids) == expected(text, depth)
    if found is not None:
        assert (found.position, found.last_token_id) == (len(text), text[-1])
        assert (found.source, found.distributions) == ("stop_gap", None)
        assert len(found.confidences) == depth
        assert all(0 < confidence < 1 for confidence in found.confidences)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=20))
def test_it_follows_a_text_as_it_grows(pieces: list[list[int]]) -> None:
    stop_gap, growing = StopGap(), session([])
    for piece in pieces:
        growing.token_ids += piece
        found = stop_gap.find(growing, 3)
        assert (found and found.token_ids) == expected(growing.token_ids, 3)
        stop_gap.end_step(verified=[1], gain_s=0.01)


def test_longer_and_clearer_matches_are_more_confident() -> None:
    def confidence(text: Sequence[int]) -> float:
        found = StopGap().find(session(text), 1)
        assert found is not None
        return found.confidences[0]

    assert confidence([1, 2, 3, 4, 9, 1, 2, 3, 4]) > confidence([3, 4, 9, 0, 3, 4])
    assert confidence([3, 4, 9, 0, 3, 4]) > confidence([3, 4, 9, 3, 4, 9, 3, 4, 8, 3, 4])


def test_within_a_step_the_answer_stays_the_same_and_is_looked_for_once() -> None:
    stop_gap, growing = StopGap(), session([1, 2, 3, 1, 2])
    found = stop_gap.find(growing, 2)
    growing.token_ids += [7]

    assert stop_gap.find(growing, 2) is found
    stop_gap.end_step(verified=[1], gain_s=0.01)
    assert stop_gap.find(growing, 2) is None


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(0, 4),
)
def test_a_tail_is_what_would_be_found_if_the_tokens_before_it_were_there(
    text: list[int], proposed: list[int], depth: int
) -> None:
    found = StopGap().find_tail(session(text), proposed, depth)
    whole = StopGap().find(session([*text, *proposed]), depth)
    assert (found is None) == (whole is None)
    if found is not None and whole is not None:
        assert found.token_ids == whole.token_ids
        assert found.confidences == whole.confidences


def test_tails_are_looked_for_in_as_few_requests_together_with_all_else() -> None:
    stop_gap = StopGap()
    assert (
        sum(stop_gap.find(session([1, 2, 3, 1, 2], i), 2) is not None for i in range(10))
        + sum(
            stop_gap.find_tail(session([1, 2, 3, 1], i), [2], 2) is not None for i in range(10, 40)
        )
        == MOST_SCANS
    )
    stop_gap.end_step(verified=[12], gain_s=0.01)
    assert stop_gap.find_tail(session([1, 2, 3, 1], 10), [2], 2) is not None


def test_a_step_looks_for_a_few_requests_only_and_for_none_where_that_was_in_vain() -> None:
    stop_gap = StopGap()
    sessions = [session([1, 2, 3, 1, 2], session_id) for session_id in range(40)]

    def num_found() -> int:
        return sum(stop_gap.find(one, 2) is not None for one in sessions)

    assert num_found() == MOST_SCANS
    stop_gap.end_step(verified=[], gain_s=0.01)
    counts = []
    for _ in range(20 * LAST_PAUSE):
        counts.append(num_found())
        stop_gap.end_step(verified=[], gain_s=0.01)
    assert set(counts) == {0, MOST_SCANS}
    assert counts[-LAST_PAUSE * 4 :].count(MOST_SCANS) <= 4
    while not num_found():
        stop_gap.end_step(verified=[], gain_s=0.01)
    stop_gap.end_step(verified=[3], gain_s=0.01)
    assert num_found() == MOST_SCANS


def test_none_is_looked_for_where_that_takes_more_than_it_saves() -> None:
    stop_gap = StopGap()
    sessions = [session([1, 2, 3, 1, 2], session_id) for session_id in range(8)]

    def num_found(gain_s: float) -> int:
        found = [one.session_id for one in sessions if stop_gap.find(one, 2) is not None]
        stop_gap.end_step(verified=found, gain_s=gain_s)
        return len(found)

    assert [num_found(0.001) for _ in range(100)] == [8] * 100
    counts = [num_found(-0.001) for _ in range(20 * LAST_PAUSE)]
    assert counts[-LAST_PAUSE * 4 :].count(8) <= 4
    counts = [num_found(0.010) for _ in range(4 * LAST_PAUSE)]
    assert counts[2 * LAST_PAUSE :] == [8] * 2 * LAST_PAUSE


def test_nor_for_one_request() -> None:
    stop_gap, one = StopGap(), session([1, 2, 3, 1, 2])
    counts = []
    for _ in range(20 * LAST_PAUSE):
        found = stop_gap.find(one, 2)
        counts.append(found is not None)
        stop_gap.end_step(verified=[1] if found is not None else [], gain_s=-0.001)

    assert sum(counts[-LAST_PAUSE * 4 :]) <= 4


def test_a_few_requests_are_looked_for_in_each_step_however_vain() -> None:
    stop_gap = StopGap()
    for _ in range(50):
        assert stop_gap.find(session([1, 2, 3, 1, 2]), 2) is not None
        stop_gap.end_step(verified=[], gain_s=0.01)


def test_nothing_is_left_of_a_session_that_is_closed() -> None:
    stop_gap = StopGap()
    stop_gap.find(session([1, 2, 3, 1, 2]), 2)
    stop_gap.end_step(verified=[], gain_s=0.01)
    stop_gap.close(session([1, 2, 3, 1, 2]))

    assert stop_gap.find(session([5, 6]), 2) is None  # another session of the same id


# Copies from earlier answers


def remembering(*answers: Sequence[int], tenant: str = "", is_shareable: bool = True) -> StopGap:
    """After these answers to a prompt of one token."""
    stop_gap = StopGap(memory=AnswerMemory(1000))
    for answer in answers:
        stop_gap.close(session([0, *answer], tenant=tenant, is_shareable=is_shareable))
    return stop_gap


def test_earlier_answers_are_copied() -> None:
    found = remembering([1, 2, 3, 4, 5, 6], [7, 8, 9]).find(session([9, 2, 3]), 2)
    assert found is not None
    assert (found.source, found.token_ids) == ("stop_gap_shared", (4, 5))
    assert (found.position, found.last_token_id, len(found.confidences)) == (3, 3, 2)


def test_a_copy_ends_where_the_answer_did() -> None:
    stop_gap = remembering([1, 2, 3, 4], [5, 6])
    found = stop_gap.find(session([9, 2, 3]), 5)
    assert found is not None
    assert found.token_ids == (4,)
    stop_gap.end_step(verified=[], gain_s=0.01)
    assert stop_gap.find(session([9, 3, 4], 2), 5) is None


def test_what_matches_further_is_copied_wherever_it_stands() -> None:
    answers = [1, 2, 3, 4, 5], [8, 3, 4, 6]
    for text, source, token_id in (
        ([3, 4, 7, 2, 3, 4], "stop_gap_shared", 5),
        ([2, 3, 4, 7, 0, 2, 3, 4], "stop_gap", 7),  # as far: its own text is likelier to go on
        ([1, 2, 3, 4, 7, 1, 2, 3, 4], "stop_gap", 7),
    ):
        found = remembering(*answers).find(session(text), 1)
        assert found is not None
        assert (found.source, found.token_ids) == (source, (token_id,))


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9),
    st.lists(st.integers(0, 2), min_size=3, max_size=9),
)
def test_of_earlier_answers_it_takes_what_followed_most_often(
    answers: list[list[int]], text: list[int]
) -> None:
    """The slow and obvious way, where the request's own text has no match."""
    if expected(text, 1) is not None:
        return
    best = None
    for length in range(8, 1, -1):
        followers = [
            answer[i + length]
            for answer in answers
            for i in range(len(answer) - length)
            if answer[i : i + length] == text[-length:] and len(text) > length
        ]
        if followers:
            counts = Counter(followers)
            best = {t for t in counts if counts[t] == max(counts.values())}
            break
    found = remembering(*answers).find(session(text), 1)
    assert (found is None) == (best is None)
    assert found is None or found.token_ids[0] in (best or ())


def test_a_tenant_gets_its_own_answers_only() -> None:
    stop_gap = remembering([1, 2, 3, 4], tenant="a")
    assert stop_gap.find(session([9, 2, 3], tenant="b"), 1) is None
    stop_gap.end_step(verified=[], gain_s=0.01)
    assert stop_gap.find(session([9, 2, 3], 2, tenant="a"), 1) is not None


def test_prompts_are_never_remembered() -> None:
    stop_gap = StopGap(memory=AnswerMemory(1000))
    asked = session([1, 2, 3, 4])
    asked.num_prompt_tokens = 4
    stop_gap.close(asked)
    assert stop_gap.find(session([9, 2, 3]), 1) is None


def test_answers_that_may_not_be_shared_are_not_remembered() -> None:
    assert remembering([1, 2, 3, 4], is_shareable=False).find(session([9, 2, 3]), 1) is None


def test_nothing_is_remembered_unless_asked_for() -> None:
    for shared_tokens in (0, 100):
        config = TargetPluginConfig(
            max_depth=4,
            policy=SpeculationPolicy(),
            trust_draft_distributions=True,
            shared_tokens=shared_tokens,
        )
        stop_gap = make_stop_gap(config)
        stop_gap.close(session([0, 1, 2, 3, 4]))
        assert (stop_gap.find(session([9, 2, 3]), 1) is not None) == (shared_tokens > 0)
        assert stop_gap.only_copies_own_text == (shared_tokens == 0)


# Guesses by n-grams


@pytest.fixture
def ngrams(tmp_path: Path) -> NgramModel:
    loaded = load_ngrams(write_ngrams(tmp_path, NGRAMS))
    assert loaded is not None
    return loaded


def test_n_grams_guess_where_nothing_repeats_itself(ngrams: NgramModel) -> None:
    found = StopGap(ngrams).find(session([9, 8, 1]), 4)

    assert found is not None
    assert (found.source, found.token_ids) == ("stop_gap_ngram", (2, 1, 2, 1))
    assert (found.position, found.last_token_id, found.distributions) == (3, 1, None)
    assert found.confidences == pytest.approx((0.9, 0.5, 0.9, 0.5), rel=1e-3)
    assert StopGap(ngrams).find(session([9, 8, 7]), 4) is None


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ((1, 9, 1), "stop_gap_ngram"),  # one token alone is not copied
        ((4, 3, 2, 0, 5, 4, 3, 2, 0), "stop_gap"),  # 0 has weak followers only, but one here
        ((0, 1, 7, 0, 1, 2, 5, 0, 1), "stop_gap_ngram"),  # 0, 1 had two, 1 has a strong one
    ],
)
def test_what_is_expected_to_get_further_is_proposed(
    ngrams: NgramModel, text: Sequence[int], source: Source
) -> None:
    found = StopGap(ngrams).find(session(text), 1)

    assert found is not None
    assert found.source == source


@pytest.mark.parametrize("name", ["nowhere", "broken", "empty"])
def test_without_its_n_grams_a_target_still_copies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for there in ("broken", "empty"):
        (tmp_path / there).mkdir()
    (tmp_path / "broken" / NGRAM_FILE).write_bytes(b"short")
    config = TargetPluginConfig(
        max_depth=4,
        policy=SpeculationPolicy(),
        trust_draft_distributions=True,
        ngrams=str(tmp_path / name),
    )
    stop_gap = make_stop_gap(config)

    assert "no n-grams for the stop-gap" in caplog.text
    assert not stop_gap.has_ngrams
    assert stop_gap.find(session([1, 2, 3, 1, 2]), 1) is not None


# Exactness: sampled texts, each step verifying as many copied tokens as their confidence allows.

VOCAB_SIZE, LENGTH, DEPTH, NUM_TEXTS = 3, 4, 3, 3000
PROMPT = (0, 1, 2, 1, 0, 1)
TARGET = np.random.default_rng(3).dirichlet(np.full(VOCAB_SIZE, 2.0), size=VOCAB_SIZE)

Shipped = Callable[[Proposal], TruncatedDistributions | None]


def point_masses(proposal: Proposal) -> None:
    """As they are."""


def confident(proposal: Proposal) -> TruncatedDistributions:
    """As if they had been drawn from what a draft is confident of."""
    q = np.full((len(proposal.token_ids), VOCAB_SIZE), 0.2, np.float32)
    q[np.arange(len(q)), list(proposal.token_ids)] = 0.6
    ids = np.tile(np.arange(VOCAB_SIZE, dtype=np.int32), (len(q), 1))
    return TruncatedDistributions(ids, q)


def p_value(
    shipped: Shipped, ngrams: NgramModel | None = None, *, remembers: bool = False
) -> float:
    rng = np.random.default_rng(5)
    counts: Counter[tuple[int, ...]] = Counter()
    memory = AnswerMemory(64) if remembers else None
    for _ in range(NUM_TEXTS):
        stop_gap, writing = StopGap(ngrams, memory), session(PROMPT)
        writing.num_prompt_tokens = len(PROMPT)
        while len(writing.token_ids) < len(PROMPT) + LENGTH:
            found = stop_gap.find(writing, DEPTH)
            depth = sum(c > 0.4 for c in found.confidences) if found is not None else 0
            copied = found.token_ids[:depth] if found is not None else ()
            q = shipped(found) if found is not None else None
            rows = TARGET[[writing.token_ids[-1], *copied]]
            writing.token_ids += verify(rows, copied, q and q.prefix(depth), rng).token_ids
            stop_gap.end_step(verified=[1] if depth else [], gain_s=0.01)
        stop_gap.close(writing)
        counts[tuple(writing.token_ids[len(PROMPT) :][:LENGTH])] += 1
    texts = list(product(range(VOCAB_SIZE), repeat=LENGTH))
    chances = [np.prod(TARGET[[PROMPT[-1], *text[:-1]], text]) for text in texts]
    observed = np.array([counts[text] for text in texts])
    return chi_square(observed, NUM_TEXTS * np.array(chances))


@pytest.mark.parametrize(
    ("shipped", "is_exact"), [(point_masses, True), (confident, False)], ids=["ours", "power check"]
)
def test_the_output_has_the_targets_distribution(shipped: Shipped, is_exact: bool) -> None:
    assert (p_value(shipped) > 1e-4) == is_exact


@pytest.mark.parametrize(
    ("shipped", "is_exact"), [(point_masses, True), (confident, False)], ids=["ours", "power check"]
)
def test_so_has_what_n_grams_guess(ngrams: NgramModel, shipped: Shipped, is_exact: bool) -> None:
    assert (p_value(shipped, ngrams) > 1e-4) == is_exact


@pytest.mark.parametrize(
    ("shipped", "is_exact"), [(point_masses, True), (confident, False)], ids=["ours", "power check"]
)
def test_so_has_what_earlier_answers_say(shipped: Shipped, is_exact: bool) -> None:
    """Each text may copy from those before it."""
    assert (p_value(shipped, remembers=True) > 1e-4) == is_exact
