import pytest
import torch

from specray.draft.model_session import ModelSession
from specray.types import Commit, OpenSession, SamplingSettings


@pytest.mark.parametrize(
    ("committed", "num_uncached"),
    [((5, 6, 7, 8, 1), 2), ((5, 6, 9), 1), ((9,), 1), ((5, 9, 7), 2)],
    ids=["all accepted", "two accepted", "none", "agrees again after a difference"],
)
def test_what_was_drafted_and_accepted_needs_no_second_pass(
    committed: tuple[int, ...], num_uncached: int
) -> None:
    session = ModelSession(OpenSession(1, (1, 2, 3), 3, SamplingSettings(), 4), torch.empty(0))
    session.set_cached(3, ahead=(5, 6, 7))  # of the draft 5 6 7 8; the last one was never fed
    session.extend(Commit(1, 3, committed, 4, 0))
    assert session.num_uncached == num_uncached
    session.extend(Commit(1, 3 + len(committed), (5,), 4, 0))
    assert session.num_uncached == num_uncached + 1
