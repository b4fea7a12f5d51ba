"""The incremental index against a search through the whole text."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from specray.draft.ngram_index import NgramIndex


def searched(text: list[int], min_ngram: int, max_ngram: int, depth: int) -> list[int]:
    """The rule as the index states it, by brute force."""
    for size in range(min(max_ngram, len(text)), min_ngram - 1, -1):
        suffix = text[len(text) - size :]
        follows = [i for i in range(size, len(text)) if text[i - size : i] == suffix]
        if follows:
            counts = Counter(text[i] for i in follows)
            latest = {text[i]: i for i in follows}
            start = latest[max(counts, key=lambda token_id: (counts[token_id], latest[token_id]))]
            copied = list(text)
            for i in range(depth):
                copied.append(copied[start + i])
            return copied[len(text) :]
    return []


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 7),
    st.integers(0, 60),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_continuations_equal_a_search(
    text: list[int], min_ngram: int, more: int, depth: int, split: int
) -> None:
    index = NgramIndex(min_ngram, min_ngram + more, text[:split])
    index.extend(text[split:])
    assert index.continuation(depth) == searched(text, min_ngram, min_ngram + more, depth)


def test_the_longest_match_wins() -> None:
    index = NgramIndex(1, 3, [1, 2, 3, 50, 9, 3, 60, 9, 3, 60, 1, 2, 3])
    assert index.continuation(1) == [50]


def test_the_most_frequent_continuation_wins_then_the_latest() -> None:
    assert NgramIndex(1, 1, [7, 1, 7, 2, 7, 1, 7]).continuation(1) == [1]
    assert NgramIndex(1, 1, [7, 1, 7, 2, 7]).continuation(1) == [2]


def test_a_loop_is_continued_beyond_its_end() -> None:
    assert NgramIndex(2, 4, [8, 1, 2, 1, 2, 1, 2]).continuation(5) == [1, 2, 1, 2, 1]


def test_nothing_follows_a_new_suffix() -> None:
    index = NgramIndex(2, 4, [1, 2, 3, 4])
    assert index.continuation(3) == []
    assert NgramIndex(2, 4).continuation(3) == []
