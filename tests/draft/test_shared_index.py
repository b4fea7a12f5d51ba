from specray.draft.ngram_index import NgramIndex
from specray.draft.shared_index import EarlierAnswers, SharedIndex


def found(shared: SharedIndex, *context: int) -> tuple[int, int, float] | None:
    """The token, the length of the match and the share."""
    guessed = shared.guess(NgramIndex(2, 4, context).end)
    if guessed is None:
        return None
    index, guess = guessed
    return index.copy(guess.position, 1)[0], guess.match_length, guess.share


def test_answers_of_others_are_found() -> None:
    shared = SharedIndex(2, 4, max_tokens=100)
    shared.add([1, 2, 3, 4])
    shared.add([7, 2, 3, 5])
    assert found(shared, 9, 1, 2, 3) == (4, 3, 1.0)
    assert found(shared, 9, 2, 3) == (5, 2, 0.5)
    assert found(shared, 9, 3) is None


def test_it_holds_no_more_than_it_may_and_forgets_the_oldest() -> None:
    shared = SharedIndex(2, 4, max_tokens=40)
    for start in range(0, 1000, 10):
        shared.add(range(start, start + 10))
        assert len(shared) <= 40
    assert len(shared) >= 20
    assert found(shared, 0, 1) is None
    assert found(shared, 990, 991) == (992, 2, 1.0)
    assert found(shared, 970, 971) == (972, 2, 1.0)


def test_a_long_answer_is_cut() -> None:
    shared = SharedIndex(2, 4, max_tokens=40)
    shared.add(range(100))
    assert len(shared) == 20
    assert found(shared, 17, 18) == (19, 2, 1.0)


def test_the_longer_match_wins_then_the_newer() -> None:
    shared = SharedIndex(2, 4, max_tokens=8)
    shared.add([1, 2, 3, 4])
    shared.add([9, 2, 3, 5])
    assert found(shared, 1, 2, 3) == (4, 3, 1.0)
    assert found(shared, 8, 2, 3) == (5, 2, 1.0)


def known(answers: EarlierAnswers, tenant: str, *context: int) -> bool:
    return answers.guess(tenant, NgramIndex(2, 4, context).end) is not None


def test_no_tenant_finds_what_another_was_answered() -> None:
    answers = EarlierAnswers(2, 4, max_tokens=100)
    answers.add("a", [1, 2, 3, 4])
    answers.add("b", [5, 6, 7, 8])

    assert known(answers, "a", 1, 2)
    assert known(answers, "b", 5, 6)
    assert not known(answers, "a", 5, 6)
    assert not known(answers, "b", 1, 2)
    assert not known(answers, "c", 1, 2)


def test_who_was_answered_nothing_takes_no_room() -> None:
    answers = EarlierAnswers(2, 4, max_tokens=10)
    answers.add("a", [1, 2, 3])
    for number in range(100):
        answers.add(f"tenant {number}", [])

    assert len(answers._indexes) == 1


def test_all_tenants_together_hold_no_more_than_they_may() -> None:
    answers = EarlierAnswers(2, 4, max_tokens=40)
    for number in range(20):
        answers.add(f"tenant {number}", range(10 * number, 10 * number + 10))
        answers.add("always there", range(1000, 1004))
        assert len(answers) <= 40

    assert known(answers, "always there", 1000, 1001)
    assert known(answers, "tenant 19", 190, 191)
    assert not known(answers, "tenant 0", 0, 1)
