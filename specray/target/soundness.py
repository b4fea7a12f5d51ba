"""Can proposals' tokens have been drawn from the distributions that came with them?"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from specray.config import MAX_SUPPORT
from specray.types import Proposal, TruncatedDistributions

_SUM_TOLERANCE = 1e-3  # of float32 probabilities that the draft normalised


def are_drawn(proposals: Sequence[Proposal], vocab_size: int) -> list[bool]:
    """For each proposal, all of which ship distributions, whether its own can have yielded it.

    Those of as large a support are looked at together: numpy takes as long for one, and a sampled
    request gets one for each of its likely outcomes.
    """
    are_sound = [False] * len(proposals)
    by_support: dict[int, list[int]] = defaultdict(list)
    for i, proposal in enumerate(proposals):
        q = proposal.distributions
        if q is None or len(q) != len(proposal.token_ids):
            continue
        if q.token_ids.shape != q.probabilities.shape:
            continue
        if len(q) == 0:
            are_sound[i] = True
        elif q.token_ids.shape[1] <= MAX_SUPPORT:  # no draft of ours ships more: it is memory
            by_support[q.token_ids.shape[1]].append(i)
    for chosen in by_support.values():
        token_ids, q = stacked([proposals[i] for i in chosen])
        are_possible = _are_possible(token_ids, q, vocab_size)
        firsts = np.cumsum([0] + [len(proposals[i].token_ids) for i in chosen[:-1]])
        for i, is_sound in zip(
            chosen, np.logical_and.reduceat(are_possible, firsts).tolist(), strict=True
        ):
            are_sound[i] = is_sound
    return are_sound


def stacked(proposals: Sequence[Proposal]) -> tuple[np.ndarray, TruncatedDistributions]:
    """All tokens [tokens] of proposals of one support, and what they are said to be drawn from."""
    qs = [proposal.distributions for proposal in proposals if proposal.distributions is not None]
    token_ids = [token for proposal in proposals for token in proposal.token_ids]
    return np.asarray(token_ids, np.int64), TruncatedDistributions(
        np.concatenate([q.token_ids for q in qs]), np.concatenate([q.probabilities for q in qs])
    )


def _are_possible(
    token_ids: np.ndarray,  # [tokens]
    q: TruncatedDistributions,  # as many, of any support
    vocab_size: int,
) -> np.ndarray:  # [tokens], bool
    """Whether each row is a distribution over distinct tokens that can have yielded its token."""
    used = q.probabilities > 0  # [tokens, support]; not-a-number counts as unused
    is_finite = np.isfinite(q.probabilities)
    sums = np.where(is_finite, q.probabilities, 0.0).sum(axis=1, dtype=np.float64)
    is_proper = is_finite.all(axis=1) & ~(q.probabilities < 0).any(axis=1)
    is_proper &= np.abs(sums - 1) <= _SUM_TOLERANCE
    is_known = ((q.token_ids >= 0) & (q.token_ids < vocab_size)).all(axis=1)
    num_drawn = ((q.token_ids == token_ids[:, None]) & used).sum(axis=1)
    result: np.ndarray = is_proper & is_known & (num_drawn == 1) & _are_distinct(q.token_ids, used)
    return result


def _are_distinct(token_ids: np.ndarray, used: np.ndarray) -> np.ndarray:  # [tokens, support] both
    columns = np.arange(token_ids.shape[1])
    marked = np.sort(np.where(used, token_ids, -1 - columns), axis=1)
    result: np.ndarray = (np.diff(marked, axis=1) != 0).all(axis=1)
    return result
