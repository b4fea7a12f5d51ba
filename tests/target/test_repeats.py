"""What an audit may count of proposals that come again, longer."""

from dataclasses import replace

import numpy as np
import pytest

from specray.target.repeats import Repeats
from specray.types import Proposal, TruncatedDistributions


def drawn(num_tokens: int, seed: int = 0, session_id: int = 1, position: int = 9) -> Proposal:
    """The same tokens and rows for a seed, as far as they go."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 100, (8, 4)).astype(np.int32)[:num_tokens]
    q = np.tile(np.array([0.4, 0.3, 0.2, 0.1], np.float32), (num_tokens, 1))
    return Proposal(
        session_id, position, 7, tuple(ids[:, 0].tolist()), "model", TruncatedDistributions(ids, q)
    )


def test_of_what_comes_again_longer_only_the_rest_is_new() -> None:
    repeats = Repeats()
    for before, num_tokens in ((0, 1), (1, 3), (3, 3), (3, 5)):
        new = repeats.new_part(drawn(num_tokens))
        assert new.token_ids == drawn(num_tokens).token_ids[before:]
        assert new.distributions is not None
        rows = drawn(num_tokens).distributions
        assert rows is not None
        assert (new.distributions.token_ids == rows.token_ids[before:]).all()


@pytest.mark.parametrize(
    "other",
    [
        drawn(3, seed=1),
        drawn(3, session_id=2),
        drawn(3, position=10),
        replace(drawn(3), last_token_id=8),
        replace(drawn(3), commit_sent_at_ns=5),
    ],
    ids=["drawn anew", "another session", "another length", "another token", "another commit"],
)
def test_what_goes_on_with_nothing_is_new_from_its_beginning(other: Proposal) -> None:
    repeats = Repeats()
    repeats.new_part(drawn(2))
    assert repeats.new_part(other) is other


def test_the_same_tokens_from_other_distributions_are_new() -> None:
    """A liar could else ship what fits its tokens once they are known."""
    repeats = Repeats()
    first, longer = drawn(2), drawn(3)
    repeats.new_part(first)
    assert longer.distributions is not None
    q = longer.distributions.probabilities.copy()
    q[0, :2] = q[0, 1::-1]
    shipped = TruncatedDistributions(longer.distributions.token_ids, q)
    other = replace(longer, distributions=shipped)
    assert repeats.new_part(other) is other


def test_a_shorter_one_is_taken_whole() -> None:
    repeats = Repeats()
    repeats.new_part(drawn(3))
    assert len(repeats.new_part(drawn(2)).token_ids) == 2


def test_no_more_are_kept_than_so_many() -> None:
    repeats = Repeats(most_kept=2)
    for position in (1, 2, 3):
        repeats.new_part(drawn(1, position=position))
    assert len(repeats.new_part(drawn(2, position=3)).token_ids) == 1
    assert len(repeats.new_part(drawn(2, position=1)).token_ids) == 2
