"""Counts of the target's own distributions."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specray.distill import ngrams
from specray.distill.ngram_counts import Counts, contexts_of, count_ngrams
from specray.distill.shards import Answer, save_shard
from specray.distill.work import WorkFolder
from specray.errors import InvalidConfigError
from specray.models.ngrams import context_keys, load_ngrams


def make_answer(
    prompt: list[int], tokens: list[int], tops: list[list[int]], probs: list[list[float]]
) -> Answer:
    return Answer(
        0,
        False,
        np.array(prompt, np.int32),
        np.array(tokens, np.int32),
        np.array(tops, np.int32),
        np.log(np.array(probs)).astype(np.float16),
    )


def says(counts: Counts, *context: int) -> dict[int, float]:
    """What is counted behind a context, the latest token first."""
    (row,) = np.flatnonzero(counts.keys == context_keys(np.array([context]))[0])
    part = slice(counts.starts[row], counts.starts[row + 1])
    return dict(zip(counts.token_ids[part].tolist(), counts.shares[part].tolist(), strict=True))


def test_contexts_reach_into_the_prompt() -> None:
    answer = make_answer([5, 6], [7, 8], [[7], [8]], [[1.0], [1.0]])
    assert contexts_of(answer, 3).tolist() == [[6, 5, -1], [7, 6, 5]]


def test_distributions_are_averaged_and_drawn_towards_the_order_below() -> None:
    answer = make_answer(
        [1, 2], [3, 2, 4], [[3, 4], [2, 5], [4, 3]], [[0.6, 0.4], [0.9, 0.1], [0.8, 0.2]]
    )
    one, two = count_ngrams([answer], max_order=2)

    # Seen twice behind 2, with two observations of nothing.
    assert says(one, 2) == {
        4: pytest.approx(1.2 / 4, rel=2e-3),
        3: pytest.approx(0.8 / 4, rel=2e-3),
    }
    assert says(two, 2, 1) == {
        3: pytest.approx((0.6 + 2 * 0.8 / 4) / 3, rel=2e-3),
        4: pytest.approx((0.4 + 2 * 1.2 / 4) / 3, rel=2e-3),
    }
    assert list(says(one, 2)) == [4, 3]  # most likely first


def test_the_file_says_what_was_counted(tmp_path: Path) -> None:
    answer = make_answer(
        [5, 6], [7, 8, 7, 8], [[7, 9], [8, 9]] * 2, [[0.75, 0.125], [0.5, 0.25]] * 2
    )
    work = WorkFolder(tmp_path)
    save_shard(work.answers / "train-00000.npz", [answer])

    ngrams.write_ngrams(work)

    loaded = load_ngrams(tmp_path)
    assert loaded is not None
    one, two, *_ = count_ngrams([answer])
    for text, counted in (([9, 7, 8], says(two, 8, 7)), ([1, 8], says(one, 8))):
        opinion = loaded.opinion(text)
        assert opinion is not None
        assert opinion.token_ids.tolist() == list(counted)
        np.testing.assert_allclose(opinion.probabilities, list(counted.values()), rtol=2e-3)


class Endless:
    """Answers that are made when they are asked for, of few frequent tokens and many rare ones."""

    def __init__(self, num: int) -> None:
        self._num = num

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> Answer:
        rng = np.random.default_rng(index)
        tokens = rng.integers(rng.choice([4, 1 << 20], 60))
        tops = np.stack((tokens, rng.integers(1 << 20, size=60)), axis=1)
        probs = np.tile([0.7, 0.2], (60, 1))
        return make_answer([1], tokens.tolist(), tops.tolist(), probs.tolist())

    def __iter__(self) -> Iterator[Answer]:
        return (self[index] for index in range(self._num))


def peak_bytes(num_answers: int) -> int:
    tracemalloc.start()
    try:
        count_ngrams(Endless(num_answers), max_order=2, most_held=1000)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_answers() -> None:
    peak_bytes(20)  # warms up
    few, many = peak_bytes(60), peak_bytes(300)

    assert many < 1.3 * few


def test_counts_do_not_depend_on_what_may_be_held_if_all_can_be() -> None:
    answers = Endless(20)
    tight = 20 * 60 * 2 * 2  # so many followers, with those that are inherited; merged often

    for few, many in zip(
        count_ngrams(answers, 2, most_held=tight), count_ngrams(answers, 2), strict=True
    ):
        for field, wanted in zip(few, many, strict=True):
            assert field.tobytes() == wanted.tobytes()


def test_the_frequent_is_counted_though_not_all_can_be_held(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    answers = Endless(100)

    (whole,) = count_ngrams(answers, max_order=1)
    assert not caplog.messages
    (part,) = count_ngrams(answers, max_order=1, most_held=1000)

    assert len(part.keys) < len(whole.keys)
    for token in range(4):
        wanted, found = says(whole, token), says(part, token)
        for follower in range(4):
            assert found[follower] == pytest.approx(wanted[follower], rel=0.01)
    assert "n-grams: rare contexts of 1 tokens were dropped" in caplog.messages[0]


def test_without_answers_there_is_nothing_to_count(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="--only answers"):
        ngrams.write_ngrams(WorkFolder(tmp_path))
