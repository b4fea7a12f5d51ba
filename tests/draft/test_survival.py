import pytest

from specray.draft.ngram_index import Guess
from specray.draft.survival import OWN_TEXT, Survival, expected_length
from specray.types import SamplingSettings

GREEDY = SamplingSettings()


def test_longer_matches_are_believed_more_from_the_start() -> None:
    table = Survival(OWN_TEXT).table(GREEDY)
    rates = [table.rate(Guess(5, length, 1.0)) for length in range(1, 10)]
    assert rates == sorted(rates)
    assert rates[:3] == [0.25, 0.50, 0.65]
    assert rates[-2:] == [0.93, 0.93]


def test_a_guess_that_competes_with_others_is_believed_less() -> None:
    table = Survival(OWN_TEXT).table(GREEDY)
    assert table.rate(Guess(5, 3, 0.5)) < table.rate(Guess(5, 3, 0.7)) == 0.65


def test_a_point_mass_is_accepted_less_where_tokens_are_drawn() -> None:
    survival = Survival(OWN_TEXT)
    hot = survival.table(SamplingSettings(temperature=1.0))
    assert hot.rate(Guess(5, 4, 1.0)) < survival.table(GREEDY).rate(Guess(5, 4, 1.0))


def test_it_learns_what_each_kind_of_guess_is_worth() -> None:
    table = Survival(OWN_TEXT).table(GREEDY)
    clear, torn, longer = Guess(5, 2, 1.0), Guess(5, 2, 0.5), Guess(5, 3, 1.0)
    for _ in range(400):
        table.observe(clear, 5)
        table.observe(torn, 6)
    assert table.rate(clear) > 0.95
    assert table.rate(torn) < 0.1
    assert table.rate(longer) == 0.65


def test_temperatures_learn_apart() -> None:
    survival = Survival(OWN_TEXT)
    warm, hot = SamplingSettings(0.7), SamplingSettings(1.0, top_p=0.9)
    for _ in range(200):
        survival.table(warm).observe(Guess(5, 4, 1.0), 5)
    assert survival.table(SamplingSettings(0.75)) is survival.table(warm)
    assert survival.table(warm).rate(Guess(5, 4, 1.0)) > 0.9
    assert survival.table(hot).rate(Guess(5, 4, 1.0)) == 0.65
    assert survival.table(SamplingSettings(50.0)) is survival.table(SamplingSettings(2.0))


def test_a_chain_goes_as_far_as_all_before_it_survives() -> None:
    assert expected_length([0.5, 0.5, 1.0]) == pytest.approx(0.5 + 0.25 + 0.25)
    assert expected_length([]) == 0.0
