import numpy as np
import pytest

from specray.distill.loops import loop_start


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("abcdefg", 7),
        ("abxyxy", 6),  # two rounds are none yet
        ("abxyxyxy", 6),
        ("abxyxyxyxyxyx", 6),  # in the middle of a round
        ("aaaaaaaa", 2),
        ("xyxyxyab", 8),  # it ends otherwise
        ("", 0),
        ("a", 1),
    ],
)
def test_a_text_is_cut_before_the_third_round_of_its_loop(text: str, length: int) -> None:
    assert loop_start(np.array([ord(char) for char in text], np.int32)) == length
