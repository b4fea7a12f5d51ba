"""Drafting ahead, slow and obvious."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specray.sampling.reference import Probabilities, verify
from specray.types import TruncatedDistributions

Text = tuple[int, ...]
Language = Callable[[Text], Probabilities]  # the distribution after a text, [vocab]


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
