from hypothesis import given
from hypothesis import strategies as st

from specray.target.text import Text

tokens = st.lists(st.integers(-1, 2**31 - 1), max_size=9)


@given(tokens, st.lists(tokens, max_size=9))
def test_it_is_what_was_appended(first: list[int], pieces: list[list[int]]) -> None:
    text, expected = Text(first), list(first)
    for piece in pieces:
        text.append(piece)
        expected += piece
        assert (len(text), text.token_ids.tolist()) == (len(expected), expected)
