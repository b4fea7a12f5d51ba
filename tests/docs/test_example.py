"""The proposer that docs/drafts.md shows, as a deployment names it."""

from pathlib import Path

import pytest

from specray.config import DraftConfig
from specray.draft.factory import make_proposer
from specray.draft.proposer import Proposer
from specray.errors import SessionRejectedError
from specray.types import Commit, OpenSession, SamplingSettings
from tests.docs.fences import EXAMPLE, commands


@pytest.fixture
def proposer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proposer:
    (fence,) = (fence for fence in commands() if fence.title == EXAMPLE)
    (tmp_path / EXAMPLE).write_text(fence.text)
    monkeypatch.syspath_prepend(tmp_path)
    custom = {"import_path": "last_time:LastTime", "kwargs": {"length": 3}}
    return make_proposer(DraftConfig.model_validate({"method": "custom", "custom": custom}))


def test_the_example_follows_a_request(proposer: Proposer) -> None:
    proposer.open(OpenSession(1, (5, 6, 7, 8), 4, SamplingSettings(), depth=4))
    proposer.commit(Commit(1, 4, (5,), depth=4, sent_at_ns=9))
    (proposal,) = proposer.propose([1])

    assert (proposal.position, proposal.last_token_id) == (5, 5)
    assert proposal.token_ids == (6, 7, 8)
    assert proposal.commit_sent_at_ns == 9
    assert not proposer.work()
    assert proposer.take_evicted() == []


def test_the_example_stays_within_the_depth_and_may_have_nothing(proposer: Proposer) -> None:
    proposer.open(OpenSession(1, (5, 6, 5), 3, SamplingSettings(), depth=1))
    proposer.open(OpenSession(2, (5, 6), 2, SamplingSettings(), depth=4))

    assert [p.token_ids for p in proposer.propose([1, 2])] == [(6,), ()]


def test_a_session_that_the_example_rejects_is_gone(proposer: Proposer) -> None:
    proposer.open(OpenSession(1, (5, 6), 2, SamplingSettings(), depth=4))

    for position in (7, 2):  # it has missed something, and is not held any more then
        with pytest.raises(SessionRejectedError):
            proposer.commit(Commit(1, position, (5,), depth=4, sent_at_ns=9))
    proposer.close(1)
