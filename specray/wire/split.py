"""A frame as one message or, where that would be too large, as several that mean the same.

What a frame holds has an order (see `speculation.proto`), and the parts come in it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import ceil
from typing import TypeVar

from specray.types import Commit, OpenSession, Proposal, ProposalFrame, SessionFrame
from specray.wire.codec import encode_proposal_frame, encode_session_frame

F = TypeVar("F", SessionFrame, ProposalFrame)
T = TypeVar("T")

LARGEST = 4 << 20
"""Bytes of a message that holds more than one item. Whoever decodes it does nothing else then."""


def session_messages(frame: SessionFrame) -> Iterator[bytes]:
    """The frame as `SessionFrame` messages, encoded as they are asked for.

    Raises:
        ValueError: a number does not fit its field (a negative id, say).
    """
    return _messages(frame, encode_session_frame, _session_parts)


def proposal_messages(frame: ProposalFrame) -> Iterator[bytes]:
    """The frame as `ProposalFrame` messages, encoded as they are asked for.

    Raises:
        ValueError: a number does not fit its field (a negative id, say).
    """
    return _messages(frame, encode_proposal_frame, _proposal_parts)


def _messages(
    frame: F, encode: Callable[[F], bytes], parts: Callable[[F, int], Sequence[F]]
) -> Iterator[bytes]:
    data = encode(frame)
    several = parts(frame, ceil(len(data) / LARGEST)) if len(data) > LARGEST else ()
    if len(several) > 1:
        yield from chain.from_iterable(_messages(part, encode, parts) for part in several)
    else:
        yield data


def _session_parts(frame: SessionFrame, most: int) -> list[SessionFrame]:
    return [
        SessionFrame(
            tuple(item for item in items if isinstance(item, OpenSession)),
            tuple(item for item in items if isinstance(item, Commit)),
            tuple(item for item in items if isinstance(item, int)),
        )
        for items in _slices((*frame.opens, *frame.commits, *frame.closes), most)
    ]


def _proposal_parts(frame: ProposalFrame, most: int) -> list[ProposalFrame]:
    return [
        ProposalFrame(
            tuple(item for item in items if isinstance(item, Proposal)),
            tuple(item for item in items if isinstance(item, int)),
            frame.drafts if number == 0 else None,
        )
        for number, items in enumerate(_slices((*frame.proposals, *frame.lost), most))
    ]


def _slices(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """About so many parts of about equal numbers of items."""
    size = max(1, len(items) // most)
    return [items[i : i + size] for i in range(0, len(items), size)]
