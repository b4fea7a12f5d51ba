import numpy as np
import pytest
import torch

from specray.distill.loops import is_looping, loop_start


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


def test_rows_are_told_to_loop_together() -> None:
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 3, (400, 120)).astype(np.int32)
    for period in range(1, 80):  # some longer than any that is looked for
        row = 100 + period
        start = 120 - int(rng.uniform(2, 4) * period) % 120
        for i in range(start + period, 120):
            texts[row, i] = texts[row, i - period]
    for length in (0, 1, 2, 3, 7, 119, 120):
        wanted = [loop_start(text[:length]) < length for text in texts]
        assert is_looping(torch.from_numpy(texts[:, :length])).tolist() == wanted
    assert 40 < sum(wanted) < 360
