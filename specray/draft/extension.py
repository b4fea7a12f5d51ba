"""How a model's proposal goes on where the model had no time to: by what costs next to nothing.

Of what a step can verify a draft that works ahead has often computed a token or two when it has to
leave. Behind these, copies and n-grams fill the depth that was asked for.

Exactness. An extension is chosen and drawn, given all tokens before it, as any tokens of its
source are, after those were fixed. Whether there is one depends on how far the model has come.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from specray.types import Extension, Proposal, Source, TruncatedDistributions


class Further(NamedTuple):
    """What a source proposes behind tokens that are not a session's yet."""

    token_ids: Sequence[int]
    source: Source
    confidences: Sequence[float]  # of each token
    distributions: TruncatedDistributions | None = None  # what they were drawn from, if they were


Extend = Callable[[int, Sequence[int], int], Further | None]
"""From a session, tokens that follow it, and how many more there may be at most."""


def is_extensible(proposal: Proposal) -> bool:
    """Whether it has tokens, and says of each what the target needs to know of all."""
    has_both = proposal.distributions is not None or bool(proposal.confidences)
    return has_both and bool(proposal.token_ids)


def extended(proposal: Proposal, further: Further | None) -> Proposal:
    """A proposal that goes on; as it is where nothing follows, or nothing that it could ship."""
    if further is None or not further.token_ids or not is_extensible(proposal):
        return proposal
    own, more = proposal.distributions, further.distributions
    if (own is None) != (more is None):
        return proposal
    return replace(
        proposal,
        token_ids=(*proposal.token_ids, *further.token_ids),
        distributions=own.followed_by(more) if own is not None and more is not None else None,
        confidences=(*proposal.confidences, *further.confidences) if own is None else (),
        extension=Extension(len(proposal.token_ids), further.source),
    )
