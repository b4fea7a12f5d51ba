from specray.draft.ngram_index import Guess
from specray.draft.survival import OWN_TEXT, Survival, SurvivalTable
from specray.types import SamplingSettings

GREEDY = SamplingSettings()


def rate(table: SurvivalTable, guess: Guess) -> float:
    return table.rates(guess, 1)[0]


def guess(match_length: int, share: float = 1.0) -> Guess:
    return Guess(0, match_length, share)


def test_longer_matches_are_believed_more_from_the_start() -> None:
    table = Survival(OWN_TEXT).table(GREEDY)
    rates = [rate(table, guess(length)) for length in range(1, 10)]
    assert rates == sorted(rates)
    assert rates[:3] == [0.25, 0.50, 0.65]
    assert rates[-2:] == [0.93, 0.93]


def test_a_match_grows_with_each_accepted_token() -> None:
    table = Survival(OWN_TEXT).table(GREEDY)
    for share in (1.0, 0.5):
        for length in (1, 4, 7, 8, 20):
            grown = [rate(table, guess(length + i, share)) for i in range(5)]
            assert table.rates(guess(length, share), 5) == grown


def test_a_guess_that_competes_with_others_is_believed_less() -> None:
    table = Survival(OWN_TEXT).table(GREEDY)
    assert rate(table, guess(3, 0.5)) < rate(table, guess(3, 0.7)) == 0.65


def test_a_point_mass_is_accepted_less_where_tokens_are_drawn() -> None:
    survival = Survival(OWN_TEXT)
    hot = survival.table(SamplingSettings(temperature=1.0))
    assert rate(hot, guess(4)) < rate(survival.table(GREEDY), guess(4))


def test_it_learns_what_each_kind_of_guess_is_worth() -> None:
    table = Survival(OWN_TEXT).table(GREEDY)
    for _ in range(400):
        table.observe(guess(2), is_right=True)
        table.observe(guess(2, 0.5), is_right=False)
    assert rate(table, guess(2)) > 0.95
    assert rate(table, guess(2, 0.5)) < 0.1
    assert rate(table, guess(3)) == 0.65


def test_temperatures_learn_apart() -> None:
    survival = Survival(OWN_TEXT)
    warm, hot = SamplingSettings(0.7), SamplingSettings(1.0, top_p=0.9)
    for _ in range(200):
        survival.table(warm).observe(guess(4), is_right=True)
    assert survival.table(SamplingSettings(0.75)) is survival.table(warm)
    assert rate(survival.table(warm), guess(4)) > 0.9
    assert rate(survival.table(hot), guess(4)) == 0.65
    assert survival.table(SamplingSettings(50.0)) is survival.table(SamplingSettings(2.0))
