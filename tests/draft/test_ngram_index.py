"""The incremental index against a search through the whole text."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from specray.draft.ngram_index import Guess, NgramIndex


def best(text: list[int], context: list[int], min_ngram: int, max_ngram: int) -> Guess | None:
    for size in range(min(max_ngram, len(context)), min_ngram - 1, -1):
        suffix = context[len(context) - size :]
        follows = [i for i in range(size, len(text)) if text[i - size : i] == suffix]
        if follows:
            counts = Counter(text[i] for i in follows)
            latest = {text[i]: i for i in follows}
            winner = max(counts, key=lambda token_id: (counts[token_id], latest[token_id]))
            return Guess(latest[winner], size, counts[winner] / len(follows))
    return None


def token_ids(index: NgramIndex, depth: int) -> list[int]:
    guess = index.guess(index.end)
    return index.copy(guess.position, depth) if guess is not None else []


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.integers(0, 3), max_size=5),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 60),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_guesses_equal_a_search(
    text: list[int], ahead: list[int], min_ngram: int, more: int, split: int
) -> None:
    """Also behind tokens that are not counted."""
    index = NgramIndex(min_ngram, min_ngram + more, text[:split])
    index.extend(text[split:])
    context = index.end
    for token_id in ahead:
        context = index.beyond(context, token_id)
    assert index.guess(context) == best(text, text + ahead, min_ngram, min_ngram + more)
    assert len(index) == len(text)


def test_the_longest_match_wins() -> None:
    index = NgramIndex(1, 3, [1, 2, 3, 50, 9, 3, 60, 9, 3, 60, 1, 2, 3])
    assert token_ids(index, 1) == [50]


def test_the_most_frequent_continuation_wins_then_the_latest() -> None:
    assert token_ids(NgramIndex(1, 1, [7, 1, 7, 2, 7, 1, 7]), 1) == [1]
    assert token_ids(NgramIndex(1, 1, [7, 1, 7, 2, 7]), 1) == [2]


def test_a_loop_is_continued_beyond_its_end() -> None:
    assert token_ids(NgramIndex(2, 4, [8, 1, 2, 1, 2, 1, 2]), 5) == [1, 2, 1, 2, 1]


def test_nothing_follows_a_new_suffix() -> None:
    index = NgramIndex(2, 4, [1, 2, 3, 4])
    assert token_ids(index, 3) == []
    assert token_ids(NgramIndex(2, 4), 3) == []
