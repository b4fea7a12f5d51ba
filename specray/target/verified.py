"""What became of the tokens that a step verified, apart for each of their sources."""

from collections.abc import Iterator
from typing import NamedTuple

from specray.control.survival import Offer
from specray.target.session import Session
from specray.types import Accepted, Source


class Piece(NamedTuple):
    """Some tokens in a row, of one source."""

    offer: Offer  # its depth is how many
    accepted: Accepted  # of them; perhaps none
    is_reached: bool  # whether all before them were accepted, so that they were tried


def verified_pieces(
    session: Session, source: Source, num_proposed: int, num_accepted: int
) -> Iterator[Piece]:
    """A proposal, and what the target put behind it if the step got there.

    Args:
        session: whose latest step that was, and who has not grown by it yet.
        source: the proposal's.
        num_proposed: Tokens that the step verified.
        num_accepted: Of these.
    """
    start = 0
    for offer in _offers(session, source, num_proposed):
        num_left = num_accepted - start
        num_own = max(0, min(num_left, offer.max_depth))
        accepted = Accepted(len(session.token_ids) + start, num_own, offer.source)
        yield Piece(offer, accepted, is_reached=num_left >= 0)
        start += offer.max_depth


def _offers(session: Session, source: Source, num_tokens: int) -> list[Offer]:
    offer = session.verifying
    if offer is None or offer.source != source:  # nobody has chosen what was verified
        acceptance, temperature = session.acceptances[source], session.sampling.temperature
        return [Offer(acceptance, source, num_tokens, temperature)]
    if offer.tail is None or num_tokens <= offer.max_depth:
        return [offer._replace(max_depth=num_tokens, tail=None)]
    tail = offer.tail._replace(max_depth=num_tokens - offer.max_depth)
    return [offer._replace(tail=None), tail]
