from collections.abc import Sequence

import pytest

from specray.router.watch import Accepted, SessionWatch
from specray.types import (
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
    Source,
)

PROMPT = (7, 8, 9)


def opens(session_id: int = 1, answer: Sequence[int] = ()) -> SessionFrame:
    tokens = (*PROMPT, *answer)
    opened = OpenSession(session_id, tokens, len(PROMPT), SamplingSettings(), 5, request_id="r")
    return SessionFrame(opens=(opened,))


def commits(answer_position: int, *token_ids: int, session_id: int = 1) -> SessionFrame:
    position = len(PROMPT) + answer_position
    return SessionFrame(commits=(Commit(session_id, position, token_ids, 5, 0),))


def proposes(
    answer_position: int,
    last: int,
    *token_ids: int,
    source: Source = "prompt_lookup",
    session_id: int = 1,
) -> dict[str, ProposalFrame]:
    position = len(PROMPT) + answer_position
    return {"t": ProposalFrame((Proposal(session_id, position, last, token_ids, source),))}


@pytest.fixture
def watch() -> SessionWatch:
    watch = SessionWatch("r")
    watch.from_target("t", opens())
    return watch


def test_accepted_tokens_are_told_with_their_place_and_source(watch: SessionWatch) -> None:
    watch.from_target("t", commits(0, 20))
    watch.to_targets(proposes(1, 20, 21, 22, 23))
    watch.from_target("t", commits(1, 21, 22, 99))

    assert watch.take() == [Accepted(1, 2, "prompt_lookup")]
    assert watch.take() == []


def test_a_plain_step_accepts_nothing(watch: SessionWatch) -> None:
    watch.from_target("t", commits(0, 20))
    watch.to_targets(proposes(1, 20, 21))
    watch.from_target("t", commits(1, 50))

    assert watch.take() == []


def test_of_two_proposals_the_one_that_agrees_was_verified(watch: SessionWatch) -> None:
    watch.from_target("t", commits(0, 20))
    watch.to_targets(proposes(1, 20, 21, 22))
    watch.to_targets(proposes(1, 20, 30, 31, source="model"))
    watch.from_target("t", commits(1, 21, 22, 99))

    assert watch.take() == [Accepted(1, 2, "prompt_lookup")]


def test_what_was_drafted_ahead_for_another_outcome_does_not_count(watch: SessionWatch) -> None:
    watch.to_targets(proposes(1, 19, 21, 22, source="model"))  # after a 19 that did not come
    watch.to_targets(proposes(1, 20, 21, 22))
    watch.from_target("t", commits(0, 20))
    watch.from_target("t", commits(1, 21, 40))

    assert watch.take() == [Accepted(1, 1, "prompt_lookup")]


def test_a_session_that_is_opened_again_goes_on(watch: SessionWatch) -> None:
    watch.from_target("t", commits(0, 20))
    watch.from_target("t", opens(answer=(20, 21, 22)))  # two tokens went by without a draft
    watch.to_targets(proposes(3, 22, 23, 24))
    watch.from_target("t", commits(3, 23, 24, 25))

    assert watch.take() == [Accepted(3, 2, "prompt_lookup")]


def test_others_of_the_same_target_or_id_are_not_mixed_in(watch: SessionWatch) -> None:
    other = OpenSession(2, PROMPT, len(PROMPT), SamplingSettings(), 5, request_id="another")
    watch.from_target("t", SessionFrame(opens=(other,)))
    watch.to_targets(proposes(0, PROMPT[-1], 20, 21, session_id=2))
    watch.from_target("t", commits(0, 20, 21, session_id=2))
    watch.from_target("another", commits(0, 20, 21))
    watch.from_target("another", SessionFrame(closes=(1,)))

    assert watch.take() == []
    assert not watch.is_closed


def test_without_a_session_there_is_nothing_to_tell() -> None:
    watch = SessionWatch("never heard of")
    watch.from_target("t", opens())
    watch.to_targets(proposes(0, PROMPT[-1], 20))

    assert watch.is_closed
    assert watch.take() == []
    assert watch.last_step(5) is None


def test_the_last_step_is_worked_out_from_the_answers_length(watch: SessionWatch) -> None:
    watch.from_target("t", commits(0, 20))
    watch.to_targets(proposes(1, 20, 21, 22, source="model"))
    assert not watch.is_closed
    watch.from_target("t", SessionFrame(closes=(1,)))

    assert watch.is_closed
    assert watch.last_step(num_tokens=2) is None  # one more than was committed: the target's own
    assert watch.last_step(num_tokens=3) == Accepted(1, 1, "model")
