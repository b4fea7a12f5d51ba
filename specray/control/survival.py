"""How likely each token of a proposal is to be accepted, learnt from what was accepted."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.control.acceptance import INITIAL_RATE, AcceptanceRate, source_acceptance
from specray.control.calibration import Calibration
from specray.control.depth import Chains
from specray.control.roofline import Numbers
from specray.types import Source

_FORGETTING = 0.999  # per verified token
_IDLE_FORGETTING = 0.99  # per step in which nothing is verified
_LEAST_OF_REQUEST = 3.0  # tokens' worth of evidence that remain then
_LEAST_OF_SOURCE = 30.0
_CAUTION = 5.0  # as if so much information were there for the coefficients to begin with
_LEAST, _MOST = 0.02, 0.98  # of any rate or confidence: nothing is certain
_LARGEST = 8.0  # of a coefficient
# Bias, logit of the request's rate, logarithm of the place, temperature, logit of the confidence.
_BLIND = np.array([0.0, 1.0, 0.0, 0.0])
_SEEING = np.array([0.0, 0.5, 0.0, 0.0, 0.5])


class Offer(NamedTuple):
    """A request's chance to speculate: tokens that are here, or that could be asked for."""

    acceptance: AcceptanceRate
    source: Source
    max_depth: int
    temperature: float = 0.0
    confidences: Sequence[float] = ()  # of the tokens that are here, in [0, 1]; none: unknown


def at_most(offers: Sequence[Offer], depth: int) -> Sequence[Offer]:
    """The offers, none deeper than that."""
    if all(offer.max_depth <= depth for offer in offers):
        return offers
    return [offer._replace(max_depth=min(depth, offer.max_depth)) for offer in offers]


class Verification(NamedTuple):
    """What became of an offer's tokens."""

    offer: Offer  # as it was before; its depth is the number of tokens that were verified
    num_accepted: int


class SurvivalModel:
    """Logistic regression, one for each source, for greedy and sampled requests.

    A token is accepted if all before it were, with a probability that follows from the request's
    acceptance so far, the place in the chain, the temperature and, where it is known, the draft's
    confidence there. What a confidence is worth is learnt: one that says nothing is soon ignored.

    A confidence must not depend on which token was drawn for a sampled request, only on the
    distribution that it was drawn from: see `plan_depths`.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self._rates: dict[tuple[Source, bool], AcceptanceRate] = {}
        self._heads: dict[tuple[Source, bool, bool], _Head] = {}
        self._num_idle = 0  # steps for which sources have yet to fade

    def chains(self, offers: Sequence[Offer]) -> Chains:
        """The survival of each token of some offers."""
        depths = np.array([offer.max_depth for offer in offers], np.intp)
        return self._predict(self._by_head(offers, depths), depths)

    def observe(self, verifications: Sequence[Verification]) -> float:
        """Learn from verifications, and keep score of what was predicted for them.

        Returns:
            How many tokens were expected to be accepted.
        """
        self._fade_sources()
        offers = [verification.offer for verification in verifications]
        depths = np.array([offer.max_depth for offer in offers], np.intp)
        accepted = np.array([v.num_accepted for v in verifications], np.intp)
        groups = self._by_head(offers, depths)
        chains = self._predict(groups, depths)
        self.calibration.observe(chains, accepted)
        num_tried = np.minimum(accepted + 1, depths)  # a chain ends at its first rejection
        for head, rows, features in groups:
            places = np.arange(features.shape[1])
            is_tried = places < num_tried[rows, None]
            head.learn(features[is_tried], (places < accepted[rows, None])[is_tried])
            rate = self._rate(offers[rows[0]])
            rate.add(int(num_tried[rows].sum()), int(accepted[rows].sum()))
        for offer, num_accepted in verifications:
            offer.acceptance.observe(offer.max_depth, num_accepted)
        return float(chains.survivals.sum())

    def fade(self, offers: Sequence[Offer], *, with_sources: bool) -> None:
        """Grow less sure of what is not tried any more, so that a few good probes turn it.

        Args:
            offers: Requests at depth 0.
            with_sources: Whether all are, so that nothing new is learnt of their sources either.
        """
        for offer in offers:
            offer.acceptance.fade(_IDLE_FORGETTING, _LEAST_OF_REQUEST)
        self._num_idle += int(with_sources)

    def _fade_sources(self) -> None:
        """For all idle steps at once: how sure one is of a source changes only what is learnt."""
        keep, self._num_idle = _IDLE_FORGETTING**self._num_idle, 0
        if keep == 1.0:
            return
        for rate in self._rates.values():
            rate.fade(keep, _LEAST_OF_SOURCE)
        for head in self._heads.values():
            head.fade(keep)

    def _predict(self, groups: "Sequence[_Group]", depths: NDArray[np.intp]) -> Chains:
        chances = np.zeros((len(depths), depths.max(initial=0)))
        for head, rows, features in groups:
            chances[rows] = head.chances(features)
        chances[np.arange(chances.shape[1]) >= depths[:, None]] = 0.0
        survivals: Numbers = np.multiply.accumulate(chances, axis=1)
        return Chains(survivals, depths)

    def _by_head(self, offers: Sequence[Offer], depths: NDArray[np.intp]) -> "list[_Group]":
        """The offers that are judged alike, together."""
        keyed: dict[tuple[Source, bool, bool], list[int]] = {}
        for row, offer in enumerate(offers):
            if offer.max_depth > 0:
                is_seen = len(offer.confidences) >= offer.max_depth
                key = (offer.source, offer.temperature == 0.0, is_seen)
                keyed.setdefault(key, []).append(row)
        depth = int(depths.max(initial=0))
        groups = []
        for key, rows in keyed.items():
            if key not in self._heads:
                self._heads[key] = _Head(_SEEING if key[2] else _BLIND)
            features = self._features([offers[row] for row in rows], depth, is_seeing=key[2])
            groups.append(_Group(self._heads[key], np.array(rows, np.intp), features))
        return groups

    def _features(self, offers: Sequence[Offer], depth: int, *, is_seeing: bool) -> Numbers:
        """Of each token of offers that are judged alike: [offers, depth, coefficients]."""
        prior = self._rate(offers[0]).rate(INITIAL_RATE)
        features = np.ones((len(offers), depth, 5 if is_seeing else 4))
        rates = np.array([offer.acceptance.rate(prior) for offer in offers])
        features[:, :, 1] = _logits(rates)[:, None]
        features[:, :, 2] = np.log(np.arange(1, depth + 1))
        features[:, :, 3] = np.array([offer.temperature for offer in offers])[:, None]
        if is_seeing:
            padding = (0.5,) * depth
            padded = chain.from_iterable((*o.confidences, *padding)[:depth] for o in offers)
            confidences = np.fromiter(padded, np.float64, len(offers) * depth)
            features[:, :, 4] = _logits(confidences).reshape(len(offers), depth)
        return features

    def _rate(self, offer: Offer) -> AcceptanceRate:
        """The rate over all requests like this one, the prior of new ones."""
        key = (offer.source, offer.temperature == 0.0)
        if key not in self._rates:
            self._rates[key] = source_acceptance()
        return self._rates[key]


class _Head:
    """Coefficients that follow the data by Newton's method, some steps' tokens at a time."""

    def __init__(self, start: Numbers) -> None:
        self.coefficients = start.copy()
        self._start = start
        self._caution = _CAUTION * np.eye(len(start))
        self._information = self._caution.copy()

    def chances(self, features: Numbers) -> Numbers:  # [..., coefficients] -> [...]
        """That tokens are accepted, given that all before them were."""
        chances: Numbers = 1 / (1 + np.exp(-(features @ self.coefficients)))
        return chances

    def fade(self, keep: float) -> None:
        """Forget a part of what was learnt, but not what it amounts to."""
        self._information = self._caution + keep * (self._information - self._caution)

    def learn(self, features: Numbers, answers: NDArray[np.bool_]) -> None:
        """Take a step towards what explains the answers; old ones fade."""
        chances = self.chances(features)
        keep = _FORGETTING ** len(answers)
        weights = (chances * (1 - chances))[:, None]
        self._information = (
            self._caution
            + keep * (self._information - self._caution)
            + features.T @ (weights * features)
        )
        pull = (1 - keep) * self._caution @ (self.coefficients - self._start)
        step = np.linalg.solve(self._information, features.T @ (answers - chances) - pull)
        self.coefficients = np.clip(self.coefficients + step, -_LARGEST, _LARGEST)


class _Group(NamedTuple):
    """Offers that one head judges."""

    head: _Head
    rows: NDArray[np.intp]
    features: Numbers  # [rows, depth, coefficients]; those behind the end of a chain mean nothing


def _logits(rates: Numbers) -> Numbers:
    bounded = rates.clip(_LEAST, _MOST)
    logits: Numbers = np.log(bounded / (1 - bounded))
    return logits
