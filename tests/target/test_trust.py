import numpy as np
import pytest

from specray.target.trust import RouterTrust
from specray.types import Proposal, TruncatedDistributions

IDS = np.array([[4, 5]], np.int32)
UNLIKELY = Proposal(
    *(1, 10, 7, (4,), "model"), TruncatedDistributions(IDS, np.array([[0.02, 0.98]], np.float32))
)
IMPOSSIBLE = Proposal(
    *(1, 10, 7, (6,), "model"), TruncatedDistributions(IDS, np.array([[0.02, 0.98]], np.float32))
)


@pytest.fixture
def trust() -> RouterTrust:
    return RouterTrust(vocab_size=100)


def test_a_draw_counts_once_while_its_stream_lasts(trust: RouterTrust) -> None:
    for _ in range(40):
        trust.observe("r", [UNLIKELY])

    assert trust.trusts("r")


def test_of_a_stream_that_has_ended_no_proposals_are_kept(trust: RouterTrust) -> None:
    """Seen from outside: the same draw, on streams that follow each other, is many draws."""
    for _ in range(40):
        trust.observe("r", [UNLIKELY])
        trust.forget_proposals("r")

    assert not trust.trusts("r")
    trust.forget_proposals("never seen")


def test_who_is_caught_stays_so_on_another_stream_and_others_are_trusted(
    trust: RouterTrust,
) -> None:
    trust.observe("r", [IMPOSSIBLE])
    trust.forget_proposals("r")
    trust.observe("r", [UNLIKELY])

    assert not trust.trusts("r")
    assert trust.trusts("another")
