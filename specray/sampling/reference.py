"""Speculative sampling, slow and obvious: the oracle that faster code is tested against.

Leviathan et al., arXiv 2211.17192, and Chen et al., arXiv 2302.01318.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.types import TruncatedDistributions

Probabilities = NDArray[np.float64]


class Verdict(NamedTuple):
    """What a verification adds to a request."""

    token_ids: tuple[int, ...]  # the accepted tokens and one more
    num_accepted: int


def verify(
    target: Probabilities,  # [depth + 1, vocab]: the target's distribution after each prefix
    token_ids: Sequence[int],  # [depth]: the proposal
    distributions: TruncatedDistributions | None,  # None: each token is a point mass
    rng: np.random.Generator,
) -> Verdict:
    """Accepts a prefix of the proposal and adds a token, so that the target's distribution stays.

    A token drawn from q is accepted with probability min(1, p / q); the first one that is not is
    replaced by a draw from max(0, p - q). When all are accepted the target adds one of its own.
    """
    for position, token_id in enumerate(token_ids):
        p = target[position]
        q = _dense(token_id, position, distributions, len(p))
        if rng.random() * q[token_id] >= p[token_id]:
            correction = _draw(np.maximum(p - q, 0.0), rng)
            return Verdict((*token_ids[:position], correction), position)
    bonus = _draw(target[len(token_ids)], rng)
    return Verdict((*token_ids, bonus), len(token_ids))


def _dense(
    token_id: int, position: int, distributions: TruncatedDistributions | None, num_tokens: int
) -> Probabilities:
    q = np.zeros(num_tokens)
    if distributions is None:
        q[token_id] = 1.0
        return q
    np.add.at(q, distributions.token_ids[position], distributions.probabilities[position])
    return q


def _draw(weights: Probabilities, rng: np.random.Generator) -> int:
    return int(rng.choice(len(weights), p=weights / weights.sum()))
