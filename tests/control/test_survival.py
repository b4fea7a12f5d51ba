import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from specray.control.acceptance import request_acceptance
from specray.control.calibration import Calibration, expected_error
from specray.control.survival import Offer, SurvivalModel, Verification
from tests.control.chains import even_chains

DEPTH = 4
Chance = Callable[[float, int], float]
"""That a token is accepted, by the draft's confidence and its place in the chain."""


def serve(
    model: SurvivalModel, chance: Chance, num_steps: int, *, is_seen: bool = True, seed: int = 0
) -> float:
    """Verify proposals for requests that come and go; the calibration error over them."""
    rng = random.Random(seed)
    model.calibration = Calibration()
    acceptances = [request_acceptance() for _ in range(4)]
    for step in range(num_steps):
        acceptances[step // 10 % 4] = request_acceptance()
        verifications = []
        for acceptance in acceptances:
            confidences = tuple(rng.choice((0.1, 0.3, 0.5, 0.7, 0.9)) for _ in range(DEPTH))
            accepted = itertools.takewhile(
                lambda place, seen=confidences: rng.random() < chance(seen[place], place),
                range(DEPTH),
            )
            shown = confidences if is_seen else ()
            offer = Offer(acceptance, "model", DEPTH, 0.0, shown)
            verifications.append(Verification(offer, len(list(accepted))))
        model.observe(verifications)
    seen = model.calibration
    return expected_error(
        seen.num_tokens.tolist(), seen.num_accepted.tolist(), seen.sum_predicted.tolist()
    )


def survivals(model: SurvivalModel, *confidences: float) -> list[float]:
    offer = Offer(request_acceptance(), "model", len(confidences), 0.0, confidences)
    return model.chains([offer]).survivals[0].tolist()


@pytest.mark.parametrize(
    "chance",
    [
        lambda confidence, place: confidence,
        lambda confidence, place: 0.5 * confidence,  # surer than it is right
        lambda confidence, place: 0.7 if place == 0 else 0.4,
        lambda confidence, place: 0.05,
    ],
)
@pytest.mark.parametrize("is_seen", [True, False])
def test_predictions_come_true(chance: Chance, is_seen: bool) -> None:
    model = SurvivalModel()
    serve(model, chance, 300, is_seen=is_seen)

    assert serve(model, chance, 300, is_seen=is_seen, seed=1) < 0.06


def test_a_confidence_that_says_something_is_used() -> None:
    model = SurvivalModel()
    serve(model, lambda confidence, place: confidence, 300)

    assert survivals(model, 0.9)[0] > 0.8
    assert survivals(model, 0.1)[0] < 0.25


def test_a_lie_is_soon_worth_nothing() -> None:
    model = SurvivalModel()
    serve(model, lambda confidence, place: 0.9 - 0.8 * confidence, 300)  # the surer the worse

    assert survivals(model, 0.9)[0] < 0.35


def test_a_draft_that_is_always_sure_and_always_wrong_is_not_believed() -> None:
    model = SurvivalModel()
    acceptance = request_acceptance()
    for _ in range(50):
        model.observe([Verification(Offer(acceptance, "model", 1, 0.0, (1.0,)), 0)])

    assert survivals(model, 1.0)[0] < 0.1


def test_survival_falls_along_a_chain_and_ends_with_it() -> None:
    model = SurvivalModel()
    serve(model, lambda confidence, place: 0.9, 100)
    offers = [
        Offer(request_acceptance(), "model", 3, 0.0, (0.2, 1.0, 1.0)),
        Offer(request_acceptance(), "prompt_lookup", 0),
        Offer(request_acceptance(), "model", 5, 0.7),
    ]
    chains = model.chains(offers)

    assert chains.max_depths.tolist() == [3, 0, 5]
    assert (np.diff(chains.survivals, axis=1) <= 0).all()
    assert chains.survivals[0, 3:].sum() == chains.survivals[1].sum() == 0
    assert (chains.survivals[2] > 0).all()


def test_nobody_to_speculate_for() -> None:
    assert SurvivalModel().chains([]).survivals.size == 0


def test_offers_of_all_kinds_together_are_judged_as_each_alone() -> None:
    model = SurvivalModel()
    serve(model, lambda confidence, place: confidence, 100)
    serve(model, lambda confidence, place: 0.5, 100, is_seen=False)
    offers = [
        Offer(request_acceptance(), "model", 3, 0.0, (0.2, 0.9, 0.7)),
        Offer(request_acceptance(), "model", 0, 0.0, (0.9,)),
        Offer(request_acceptance(), "model", 2, 0.0, (0.2, 0.9, 0.7)),  # more than it needs
        Offer(request_acceptance(), "model", 3),
        Offer(request_acceptance(), "prompt_lookup", 4, 1.0),
        Offer(request_acceptance(), "model", 2, 0.0, (0.4,)),
    ]
    for offer in offers[::2]:
        offer.acceptance.observe(4, 3)
    together = model.chains(offers).survivals

    for offer, row in zip(offers, together.tolist(), strict=True):
        alone = model.chains([offer]).survivals[0].tolist()
        assert row == pytest.approx([*alone, *[0.0] * (4 - offer.max_depth)])


def test_whole_numbers_are_as_good_as_others() -> None:
    """An engine in the caller's process passes on a temperature as it was given."""
    model, acceptance = SurvivalModel(), request_acceptance()

    whole = model.chains([Offer(acceptance, "model", 2, 1, (1, 0))]).survivals

    assert whole.tolist() == (
        model.chains([Offer(acceptance, "model", 2, 1.0, (1.0, 0.0))]).survivals.tolist()
    )


def test_too_few_confidences_count_as_none() -> None:
    model = SurvivalModel()
    offer = Offer(request_acceptance(), "model", 3, 0.0, (0.9,))

    blind = model.chains([offer._replace(confidences=())]).survivals
    assert np.array_equal(model.chains([offer]).survivals, blind)


def test_hot_requests_are_learnt_apart_from_cold_ones() -> None:
    model = SurvivalModel()
    cold, hot = request_acceptance(), request_acceptance()
    for _ in range(100):
        model.observe(
            [
                Verification(Offer(cold, "model", 2, 0.0), 2),
                Verification(Offer(hot, "model", 2, 1.0), 0),
            ]
        )
    new = [Offer(request_acceptance(), "model", 1, temperature) for temperature in (0.0, 1.0)]
    of_cold, of_hot = model.chains(new).survivals[:, 0]

    assert of_cold > 0.8
    assert of_hot < 0.2


def test_what_is_not_tried_any_more_is_easily_overturned() -> None:
    model = SurvivalModel()
    acceptance = request_acceptance()
    for _ in range(500):
        model.observe([Verification(Offer(acceptance, "model", 2), 0)])
    for _ in range(1000):
        model.fade([Offer(acceptance, "model", 2)], with_sources=True)
    before = survivals_of_new(model)
    assert before < 0.1
    for _ in range(12):
        model.observe([Verification(Offer(acceptance, "model", 2), 2)])

    assert survivals_of_new(model) > 0.3


def survivals_of_new(model: SurvivalModel) -> float:
    return float(model.chains([Offer(request_acceptance(), "model", 1)]).survivals[0, 0])


def test_calibration_counts_survivors_by_what_was_predicted() -> None:
    calibration = Calibration()
    calibration.observe(*even_chains([0.95, 0.5], [2, 1]), np.array([1, 1]))

    assert calibration.num_tokens.tolist() == [0] * 5 + [1, 0, 0, 0, 2]
    assert calibration.num_accepted.tolist() == [0] * 5 + [1, 0, 0, 0, 1]
    assert calibration.sum_predicted[9] == pytest.approx(0.95 + 0.95**2)


def test_a_certain_prediction_lies_in_the_last_bin() -> None:
    calibration = Calibration()
    calibration.observe(np.ones((1, 1)), np.array([1]), np.array([1]))

    assert calibration.num_tokens[9] == 1


def test_the_expected_error_by_hand() -> None:
    assert expected_error([10, 30], [5, 30], [8.0, 27.0]) == pytest.approx((3 + 3) / 40)
    assert expected_error([], [], []) == 0


def test_a_tail_goes_on_where_its_offer_ends() -> None:
    """Each token of it survives as in an offer of its own, if all before it do."""
    model = SurvivalModel()
    serve(model, lambda confidence, place: confidence, 100)
    tail = Offer(request_acceptance(), "stop_gap", 3, 0.0, (0.9, 0.5, 0.5))
    own = Offer(request_acceptance(), "model", 2, 0.0, (0.7, 0.6))
    alone = Offer(request_acceptance(), "model", 1, 0.0, (0.3,))
    chains = model.chains([alone, own._replace(tail=tail), own])
    assert chains.max_depths.tolist() == [1, 5, 2]
    first, joined, last = chains.survivals
    apart = model.chains([tail]).survivals[0]
    assert joined[:2] == pytest.approx(last[:2])
    assert joined[2:] == pytest.approx(last[1] * apart)
    assert first[0] == pytest.approx(model.chains([alone]).survivals[0, 0])
    assert not first[1:].any()
    assert not last[2:].any()
