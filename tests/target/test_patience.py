from specray.target.patience import Patience
from specray.target.session import Session
from specray.types import SamplingSettings


def make_session() -> Session:
    tokens = [1, 2, 3]
    session = Session(*(1, "r", tokens, 3, 100, 5), SamplingSettings(), uses_distributions=True)
    session.committed_at = 10.0
    return session


def test_an_answer_is_expected_to_be_whole_before_one_has_come() -> None:
    assert Patience().expected_tokens(5) == 5


def test_an_answer_is_expected_to_be_as_long_as_they_were() -> None:
    """A draft that goes on ahead answers with a token or two."""
    patience, session = Patience(), make_session()
    for num_tokens in [1, 2] * 50:
        patience.observe_answer(session, 10.1, num_tokens)
    assert patience.expected_tokens(5) == 2
    assert patience.expected_tokens(1) == 1
    for _ in range(200):
        patience.observe_answer(session, 10.1, 5)
    assert patience.expected_tokens(5) == 5


def test_what_came_ahead_or_empty_says_nothing_of_answers() -> None:
    patience, session = Patience(), make_session()
    for _ in range(50):
        patience.observe_answer(session, 9.9, 1)
        patience.observe_answer(session, 10.1, 0)
    assert patience.expected_tokens(5) == 5
