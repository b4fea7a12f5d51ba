import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from specray.config import MAX_SUPPORT
from specray.target.soundness import are_drawn
from specray.types import Proposal, TruncatedDistributions

VOCAB_SIZE = 50


def proposal(depth: int, support: int, rng: np.random.Generator) -> Proposal:
    """One that an honest draft may send."""
    ids = np.stack([rng.choice(VOCAB_SIZE, support, replace=False) for _ in range(depth)])
    q = rng.random((depth, support)) + 0.1
    q /= q.sum(axis=1, keepdims=True)
    drawn = tuple(int(row[rng.integers(support)]) for row in ids)
    distributions = TruncatedDistributions(ids.astype(np.int32), q.astype(np.float32))
    return Proposal(1, 10, 3, drawn, "model", distributions)


Parts = tuple[list[int], np.ndarray, np.ndarray]  # tokens, support and probabilities


def with_probability(row: int, column: int, value: float) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        parts[2][row, column] = value
        return parts

    return change


def impossible_token(parts: Parts) -> Parts:
    tokens, ids, _ = parts
    tokens[-1] = next(t for t in range(VOCAB_SIZE) if t not in ids[-1])
    return parts


def token_twice(parts: Parts) -> Parts:
    """Not the one that was drawn."""
    tokens, ids, _ = parts
    first, second = [column for column, token in enumerate(ids[0]) if token != tokens[0]][:2]
    ids[0, first] = ids[0, second]
    return parts


def unknown_token(parts: Parts) -> Parts:
    tokens, ids, _ = parts
    ids[2, 0], tokens[2] = VOCAB_SIZE, int(ids[2, 1])
    return parts


def too_large_a_support(parts: Parts) -> Parts:
    tokens, ids, q = parts
    shape = (len(tokens), MAX_SUPPORT + 1)
    return tokens, np.resize(ids, shape), np.resize(q, shape)


FAULTS: dict[str, Callable[[Parts], Parts]] = {
    "impossible token": impossible_token,
    "token twice": token_twice,
    "unknown token": unknown_token,
    "sum": lambda parts: (parts[0], parts[1], 1.1 * parts[2]),
    "negative": with_probability(1, 0, -0.1),
    "not a number": with_probability(0, 0, math.nan),
    "infinite": with_probability(0, 0, math.inf),
    "too few rows": lambda parts: (parts[0], parts[1][:-1], parts[2][:-1]),
    "unlike shapes": lambda parts: (parts[0], parts[1], parts[2][:, :-1]),
    "too large a support": too_large_a_support,
}


def broken(how: str, rng: np.random.Generator) -> Proposal:
    sound = proposal(3, 4, rng)
    assert sound.distributions is not None
    distributions = sound.distributions
    parts = (list(sound.token_ids), distributions.token_ids, distributions.probabilities)
    tokens, ids, q = FAULTS[how](parts)
    return replace(sound, token_ids=tuple(tokens), distributions=TruncatedDistributions(ids, q))


@pytest.mark.parametrize("how", FAULTS)
def test_one_that_is_broken_is_found_among_sound_ones(how: str) -> None:
    rng = np.random.default_rng(1)
    proposals = [
        proposal(3, 4, rng),
        broken(how, rng),
        proposal(1, 4, rng),
        proposal(2, 7, rng),
        proposal(5, 4, rng),
    ]

    assert are_drawn(proposals, VOCAB_SIZE) == [True, False, True, True, True]
    assert are_drawn(proposals[1:2], VOCAB_SIZE) == [False]


def test_together_they_are_judged_as_one_by_one() -> None:
    rng = np.random.default_rng(2)
    proposals = [
        broken(str(rng.choice(list(FAULTS))), rng)
        if rng.random() < 0.4
        else proposal(int(rng.integers(1, 6)), int(rng.integers(1, 9)), rng)
        for _ in range(200)
    ]

    together = are_drawn(proposals, VOCAB_SIZE)

    assert together == [are_drawn([each], VOCAB_SIZE)[0] for each in proposals]
    assert 0.3 < np.mean(together) < 0.8


def test_one_without_tokens_is_sound() -> None:
    empty = TruncatedDistributions(np.zeros((0, 4), np.int32), np.zeros((0, 4), np.float32))

    assert are_drawn([Proposal(1, 10, 3, (), "model", empty)], VOCAB_SIZE) == [True]
    assert are_drawn([], VOCAB_SIZE) == []
