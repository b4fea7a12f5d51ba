from collections.abc import Sequence

import pytest

from specray.router.watch import SessionWatch
from specray.types import Accepted, Commit, OpenSession, SamplingSettings, SessionFrame, Source

PROMPT = (7, 8, 9)


def opens(session_id: int = 1, answer: Sequence[int] = ()) -> SessionFrame:
    tokens = (*PROMPT, *answer)
    opened = OpenSession(session_id, tokens, len(PROMPT), SamplingSettings(), 5, request_id="r")
    return SessionFrame(opens=(opened,))


def commits(
    answer_position: int,
    *token_ids: int,
    source: Source = "prompt_lookup",
    session_id: int = 1,
) -> SessionFrame:
    """All tokens but the last had been proposed."""
    position, num_tokens = len(PROMPT) + answer_position, len(token_ids) - 1
    accepted = (Accepted(position, num_tokens, source),) if num_tokens else ()
    return SessionFrame(commits=(Commit(session_id, position, token_ids, 5, 0, accepted),))


@pytest.fixture
def watch() -> SessionWatch:
    watch = SessionWatch("r")
    watch.from_target("t", opens())
    return watch


def test_accepted_tokens_are_told_with_their_place_and_source(watch: SessionWatch) -> None:
    watch.from_target("t", commits(0, 20))
    watch.from_target("t", commits(1, 21, 22, 99))
    watch.from_target("t", commits(4, 23, 98, source="stop_gap"))

    assert watch.take() == [Accepted(1, 2, "prompt_lookup"), Accepted(4, 1, "stop_gap")]
    assert watch.take() == []


def test_a_session_that_is_opened_again_goes_on(watch: SessionWatch) -> None:
    watch.from_target("t", commits(0, 20))
    watch.from_target("t", opens(answer=(20, 21, 22)))  # two tokens went by without a draft
    watch.from_target("t", commits(3, 23, 24, 25))

    assert watch.take() == [Accepted(3, 2, "prompt_lookup")]


def test_others_of_the_same_target_or_id_are_not_mixed_in(watch: SessionWatch) -> None:
    other = OpenSession(2, PROMPT, len(PROMPT), SamplingSettings(), 5, request_id="another")
    watch.from_target("t", SessionFrame(opens=(other,)))
    watch.from_target("t", commits(0, 20, 21, session_id=2))
    watch.from_target("another", commits(0, 20, 21))
    watch.from_target("another", SessionFrame(closes=(1,)))

    assert watch.take() == []
    assert not watch.is_closed


def test_without_a_session_there_is_nothing_to_tell() -> None:
    watch = SessionWatch("never heard of")
    watch.from_target("t", opens())
    watch.from_target("t", commits(0, 20, 21))

    assert watch.is_closed
    assert watch.take() == []


def test_what_is_told_with_the_end_is_not_lost(watch: SessionWatch) -> None:
    assert not watch.is_closed
    watch.from_target("t", SessionFrame(commits=commits(0, 20, 21).commits, closes=(1,)))

    assert watch.is_closed
    assert watch.take() == [Accepted(0, 1, "prompt_lookup")]
