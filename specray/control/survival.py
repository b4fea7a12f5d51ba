"""How likely each token of a proposal is to be accepted, learnt from what was accepted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.control.acceptance import INITIAL_RATE, AcceptanceRate, source_acceptance
from specray.control.calibration import Calibration
from specray.control.depth import Chains
from specray.control.loops import NUM_FEATURES, UNKNOWN, judging
from specray.control.roofline import Numbers
from specray.types import Source

_FORGETTING = 0.999  # per verified token
_IDLE_FORGETTING = 0.99  # per step in which nothing is verified
_LEAST_OF_REQUEST = 3.0  # tokens' worth of evidence that remain then
_LEAST_OF_SOURCE = 30.0
_CAUTION = 5.0  # as if so much information were there for the coefficients to begin with
_LARGEST = 8.0  # of a coefficient
# Bias, logit of the request's rate, logarithm of the place, temperature, logit of the confidence.
_BLIND = np.array([0.0, 1.0, 0.0, 0.0, 0.0])
_SEEING = np.array([0.0, 0.5, 0.0, 0.0, 0.5])


_Likeness = tuple[Source, bool, bool]
"""Of offers that one head judges: their source, if greedy, and if all confidences are known."""


class Offer(NamedTuple):
    """A request's chance to speculate: tokens that are here, or that could be asked for."""

    acceptance: AcceptanceRate
    source: Source
    max_depth: int
    temperature: float = 0.0
    confidences: Sequence[float] = ()  # of the tokens that are here, in [0, 1]; none: unknown
    tail: "Offer | None" = None  # of another source, behind all of its tokens; has none itself


def at_most(offers: Sequence[Offer], depth: int) -> Sequence[Offer]:
    """The offers, of tokens that may be asked for and so have no tails, none deeper than that."""
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
        self._heads: dict[_Likeness, _Head] = {}
        self._num_idle = 0  # steps for which sources have yet to fade
        self._judge = judging()

    def chains(self, offers: Sequence[Offer]) -> Chains:
        """The survival of each token of some offers, tails among them."""
        tails = [offer.tail for offer in offers if offer.tail is not None]
        if not tails:
            return self._judged(offers).chains
        return _joined(offers, self._judged([*offers, *tails]).chains)

    def observe(self, verifications: Sequence[Verification]) -> float:
        """Learn from verifications, and keep score of what was predicted for them.

        Returns:
            How many tokens were expected to be accepted.
        """
        self._fade_sources()
        offers = [verification.offer for verification in verifications]
        accepted = np.array([v.num_accepted for v in verifications], np.intp)
        chains, likenesses, heads, features = self._judged(offers)
        self.calibration.observe(chains.survivals, chains.max_depths, accepted)
        # A chain ends at its first rejection.
        num_tried = np.minimum(accepted + 1, chains.max_depths)
        places = np.arange(features.shape[1])
        for index, likeness in enumerate(likenesses):
            rows = (heads == index).nonzero()[0]
            is_tried = places < num_tried[rows, None]
            has_survived = (places < accepted[rows, None])[is_tried]
            self._heads[likeness].learn(features[rows][is_tried], has_survived)
            rate = self._rate(*likeness[:2])
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

    def _judged(self, offers: Sequence[Offer]) -> "_Judged":
        num_places = max((offer.max_depth for offer in offers), default=0)
        depths = np.array([offer.max_depth for offer in offers], np.intp)
        survivals = np.zeros((len(offers), num_places))
        features = np.zeros((len(offers), num_places, NUM_FEATURES))
        likenesses, heads, rates = self._likenesses(offers)
        if likenesses:
            self._judge(
                depths,
                rates,
                np.array([offer.temperature for offer in offers], np.float64),
                _confidences(offers, num_places),
                heads,
                np.array([self._heads[likeness].coefficients for likeness in likenesses]),
                features,
                survivals,
            )
        return _Judged(Chains(survivals, depths), likenesses, heads, features)

    def _likenesses(
        self, offers: Sequence[Offer]
    ) -> tuple[tuple[_Likeness, ...], NDArray[np.intp], Numbers]:
        """Those that there are, and of each offer the index of its own and the request's rate.

        Offers without tokens have none.
        """
        indices: dict[_Likeness, int] = {}
        priors: list[float] = []
        heads, rates = np.zeros(len(offers), np.intp), np.zeros(len(offers))
        for row, offer in enumerate(offers):
            if offer.max_depth < 1:
                continue
            is_seen = len(offer.confidences) >= offer.max_depth
            likeness = (offer.source, offer.temperature == 0.0, is_seen)
            index = indices.setdefault(likeness, len(priors))
            if index == len(priors):
                priors.append(self._rate(*likeness[:2]).rate(INITIAL_RATE))
                if likeness not in self._heads:
                    self._heads[likeness] = _Head(_SEEING if is_seen else _BLIND)
            heads[row] = index
            rates[row] = offer.acceptance.rate(priors[index])
        return tuple(indices), heads, rates

    def _rate(self, source: Source, is_greedy: bool) -> AcceptanceRate:
        """The rate over all requests of a kind, the prior of new ones."""
        key = (source, is_greedy)
        if key not in self._rates:
            self._rates[key] = source_acceptance()
        return self._rates[key]


def _joined(offers: Sequence[Offer], pieces: Chains) -> Chains:
    """One chain per offer, from theirs and those of the tails, which stand behind all offers'."""
    depths = pieces.max_depths[: len(offers)].copy()
    rows = [row for row, offer in enumerate(offers) if offer.tail is not None]
    starts, more = depths[rows], pieces.max_depths[len(offers) :]
    depths[rows] += more
    survivals = np.zeros((len(offers), int(depths.max(initial=0))))
    survivals[:, : pieces.survivals.shape[1]] = pieces.survivals[: len(offers)]
    tails = zip(rows, starts.tolist(), more.tolist(), pieces.survivals[len(offers) :], strict=True)
    for row, start, depth, tail in tails:
        before = survivals[row, start - 1] if start else 1.0
        survivals[row, start : start + depth] = before * tail[:depth]
    return Chains(survivals, depths)


def _confidences(offers: Sequence[Offer], num_places: int) -> Numbers:  # [offers, places]
    unknown = (UNKNOWN,) * num_places
    if not any(offer.confidences for offer in offers):
        return np.full((len(offers), num_places), UNKNOWN)
    known = [
        (*offer.confidences, *unknown)[:num_places]
        if len(offer.confidences) >= offer.max_depth
        else unknown
        for offer in offers
    ]
    return np.array(known, np.float64)


class _Judged(NamedTuple):
    """Offers' survivals, and what they follow from."""

    chains: Chains
    likenesses: tuple[_Likeness, ...]
    heads: NDArray[np.intp]  # [offers]: the index of each one's likeness; any if without tokens
    features: Numbers  # [offers, places, features]; those behind the end of a chain mean nothing


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
