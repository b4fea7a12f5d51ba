"""Speculative sampling, slow and obvious: the oracle that faster code is tested against.

Leviathan et al., arXiv 2211.17192, and Chen et al., arXiv 2302.01318.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.types import TruncatedDistributions

Probabilities = NDArray[np.float64]
Text = tuple[int, ...]
Language = Callable[[Text], Probabilities]  # the distribution after a text, [vocab]


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


class Drafted(NamedTuple):
    """A proposal and what its tokens were drawn from."""

    token_ids: Text
    distributions: Probabilities  # [depth, vocab]


def write_ahead(
    target: Language,
    draft: Language,
    num_tokens: int,
    depth: int,
    fan_out: int,
    uniforms: Callable[[], Sequence[float]],
    rng: np.random.Generator,
) -> Text:
    """Writes a text by speculative sampling with proposals that are drafted ahead.

    While a proposal is verified, a continuation is drafted for each place at which it may be left
    and each of the draft's `fan_out` likeliest tokens there. The one that starts with what the
    verification has added is verified next; where there is none, the target decodes one token.

    Args:
        target: whose distribution the text is to have.
        draft: what proposals are drawn from.
        num_tokens: of the text.
        depth: of a proposal.
        fan_out: tokens that are prepared for at each place.
        uniforms: the random numbers of one proposal or continuation, [depth]. The text is the
            target's only if they are new for each.
        rng: the target's randomness.
    """
    text: Text = ()
    proposal = Drafted((), np.empty((0, 0)))
    while len(text) < num_tokens:
        ahead = {}
        for place in range(len(proposal.token_ids) + 1):
            accepted = text + proposal.token_ids[:place]
            for added in np.argsort(-draft(accepted))[:fan_out]:
                outcome = (*accepted, int(added))
                ahead[outcome] = _draft_after(outcome, draft, depth, uniforms())
        rows = [target(text + proposal.token_ids[:i]) for i in range(len(proposal.token_ids) + 1)]
        shipped = _shipped(proposal)
        text += verify(np.array(rows), proposal.token_ids, shipped, rng).token_ids
        proposal = ahead.get(text, Drafted((), np.empty((0, 0))))
    return text[:num_tokens]


def _draft_after(text: Text, draft: Language, depth: int, uniforms: Sequence[float]) -> Drafted:
    token_ids: Text = ()
    rows = []
    for uniform in uniforms[:depth]:
        q = draft(text + token_ids)
        rows.append(q)
        token_ids += (int(np.searchsorted(q.cumsum(), uniform * q.sum(), side="right")),)
    return Drafted(token_ids, np.array(rows))


def _shipped(proposal: Drafted) -> TruncatedDistributions | None:
    if not proposal.token_ids:
        return None
    ids = np.broadcast_to(
        np.arange(proposal.distributions.shape[1], dtype=np.int32), proposal.distributions.shape
    )
    return TruncatedDistributions(ids, proposal.distributions.astype(np.float32))


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
