"""Whether predicted chances come true."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specray.control.roofline import Numbers

NUM_BINS = 10


@dataclass(slots=True)
class Calibration:
    """Predicted and true survival of verified tokens, by tenths of the prediction."""

    num_tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    num_accepted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    sum_predicted: Numbers = field(default_factory=lambda: np.zeros(NUM_BINS))

    def observe(
        self, predicted: Numbers, depths: NDArray[np.intp], num_accepted: NDArray[np.intp]
    ) -> None:
        """Count the tokens of verified chains.

        Args:
            predicted: [requests, places]: survivals.
            depths: [requests], of the chains.
            num_accepted: [requests], of each chain.
        """
        places = np.arange(predicted.shape[1])
        is_token = places < depths[:, None]
        survivals = predicted[is_token]
        has_survived = (places < num_accepted[:, None])[is_token]
        bins = np.minimum((survivals * NUM_BINS).astype(np.intp), NUM_BINS - 1)
        self.num_tokens += np.bincount(bins, minlength=NUM_BINS)
        self.num_accepted += np.bincount(bins[has_survived], minlength=NUM_BINS)
        self.sum_predicted += np.bincount(bins, survivals, minlength=NUM_BINS)


def expected_error(
    num_tokens: Sequence[float], num_accepted: Sequence[float], sum_predicted: Sequence[float]
) -> float:
    """Expected calibration error: the mean distance of truth from prediction, over the tokens.

    Guo et al., arXiv 1706.04599. 0 without tokens.

    Args:
        num_tokens: in each bin.
        num_accepted: of them.
        sum_predicted: of their predicted chances.
    """
    gaps = zip(num_accepted, sum_predicted, strict=True)
    return sum(abs(a - p) for a, p in gaps) / max(1, sum(num_tokens))
