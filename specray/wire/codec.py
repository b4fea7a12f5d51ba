"""Frames to bytes and back. Decoding checks shapes, never meaning: that is the receiver's task."""

import re
from typing import TypeVar, cast, get_args

import numpy as np
from google.protobuf.message import DecodeError, Message

from specray.errors import ProtocolError
from specray.types import (
    DRAFT_SOURCES,
    MAX_NAME,
    Accepted,
    Commit,
    OpenSession,
    Proposal,
    ProposalFrame,
    SamplingSettings,
    SessionFrame,
    Source,
    TruncatedDistributions,
)
from specray.wire import speculation_pb2 as pb

M = TypeVar("M", bound=Message)

_KNOWN_SOURCES = frozenset(get_args(Source))
_ADDRESS = re.compile(r"[\w.-]+:\d+|\[[\da-fA-F:.]+\]:\d+")  # gRPC takes other schemes too
_ID_TYPE = np.dtype("<i4")
_PROBABILITY_TYPE = np.dtype("<f4")


def encode_session_frame(frame: SessionFrame) -> bytes:
    """The frame as a `SessionFrame` message.

    Raises:
        ValueError: a number does not fit its field (a negative id, say).
    """
    message = pb.SessionFrame(
        opens=[_open_message(session) for session in frame.opens],
        commits=[_commit_message(commit) for commit in frame.commits],
        closes=frame.closes,
    )
    return message.SerializeToString()


def decode_session_frame(data: bytes) -> SessionFrame:
    """The frame in a `SessionFrame` message.

    Raises:
        ProtocolError: `data` is no such message.
    """
    message = parse(pb.SessionFrame(), data)
    return SessionFrame(
        opens=tuple(_open_session(session) for session in message.opens),
        commits=tuple(_commit(commit) for commit in message.commits),
        closes=tuple(message.closes),
    )


def encode_proposal_frame(frame: ProposalFrame) -> bytes:
    """The frame as a `ProposalFrame` message.

    Raises:
        ValueError: a number does not fit its field (a negative id, say).
    """
    message = pb.ProposalFrame(
        proposals=[_proposal_message(proposal) for proposal in frame.proposals], lost=frame.lost
    )
    if frame.drafts is not None:
        message.drafts.MergeFrom(pb.Drafts(addresses=frame.drafts))
        message.drafts.SetInParent()  # an empty list says something too
    return message.SerializeToString()


def decode_proposal_frame(data: bytes) -> ProposalFrame:
    """The frame in a `ProposalFrame` message; its arrays are read-only views of `data`'s copy.

    Raises:
        ProtocolError: `data` is no such message, a matrix has not the size that `support` and
            `token_ids` say, confidences are not as many as tokens, the source is unknown, or a
            draft's address is none.
    """
    message = parse(pb.ProposalFrame(), data)
    return ProposalFrame(
        proposals=tuple(_proposal(proposal) for proposal in message.proposals),
        lost=tuple(message.lost),
        drafts=_addresses(message.drafts) if message.HasField("drafts") else None,
    )


def parse(message: M, data: bytes) -> M:
    """Fill `message` from `data`.

    Raises:
        ProtocolError: `data` is no such message.
    """
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        name = message.DESCRIPTOR.full_name
        raise ProtocolError(f"{len(data)} bytes are not a {name}: {error}") from error
    return message


def _open_message(session: OpenSession) -> pb.OpenSession:
    sampling = session.sampling
    return pb.OpenSession(
        session_id=session.session_id,
        token_ids=session.token_ids,
        num_prompt_tokens=session.num_prompt_tokens,
        sampling=pb.SamplingSettings(
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
        ),
        depth=session.depth,
        request_id=session.request_id[:MAX_NAME],
        traceparent=session.traceparent[:MAX_NAME],
        tenant=session.tenant[:MAX_NAME],
        target=session.target[:MAX_NAME],
        is_shareable=session.is_shareable,
    )


def _open_session(message: pb.OpenSession) -> OpenSession:
    sampling = message.sampling
    return OpenSession(
        session_id=message.session_id,
        token_ids=tuple(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        sampling=SamplingSettings(sampling.temperature, sampling.top_k, sampling.top_p),
        depth=message.depth,
        request_id=message.request_id[:MAX_NAME],
        traceparent=message.traceparent[:MAX_NAME],
        tenant=message.tenant[:MAX_NAME],
        target=message.target[:MAX_NAME],
        is_shareable=message.is_shareable,
    )


def _commit_message(commit: Commit) -> pb.Commit:
    return pb.Commit(
        session_id=commit.session_id,
        position=commit.position,
        token_ids=commit.token_ids,
        depth=commit.depth,
        sent_at_ns=commit.sent_at_ns,
        accepted=[pb.Accepted(**accepted._asdict()) for accepted in commit.accepted],
        was_late=commit.was_late,
        is_unawaited=commit.is_unawaited,
    )


def _commit(message: pb.Commit) -> Commit:
    return Commit(
        session_id=message.session_id,
        position=message.position,
        token_ids=tuple(message.token_ids),
        depth=message.depth,
        sent_at_ns=message.sent_at_ns,
        accepted=tuple(
            Accepted(accepted.position, accepted.num_tokens, cast(Source, accepted.source))
            for accepted in message.accepted
            if accepted.source in _KNOWN_SOURCES  # a newer target's may be unknown
        ),
        was_late=message.was_late,
        is_unawaited=message.is_unawaited,
    )


def _proposal_message(proposal: Proposal) -> pb.Proposal:
    message = pb.Proposal(
        session_id=proposal.session_id,
        position=proposal.position,
        last_token_id=proposal.last_token_id,
        token_ids=proposal.token_ids,
        source=proposal.source,
        commit_sent_at_ns=proposal.commit_sent_at_ns,
        draft_time_us=proposal.draft_time_us,
        covers_outcomes=proposal.covers_outcomes,
        confidences=proposal.confidences,
    )
    rows = proposal.distributions
    if rows is not None:
        message.support = rows.token_ids.shape[1]
        message.support_token_ids = rows.token_ids.astype(_ID_TYPE, copy=False).tobytes()
        message.support_probabilities = rows.probabilities.astype(
            _PROBABILITY_TYPE, copy=False
        ).tobytes()
    return message


def _proposal(message: pb.Proposal) -> Proposal:
    if message.source not in DRAFT_SOURCES:
        raise ProtocolError(f"unknown source {message.source!r}; known: {sorted(DRAFT_SOURCES)}")
    return Proposal(
        session_id=message.session_id,
        position=message.position,
        last_token_id=message.last_token_id,
        token_ids=tuple(message.token_ids),
        source=message.source,
        distributions=_distributions(message),
        commit_sent_at_ns=message.commit_sent_at_ns,
        draft_time_us=message.draft_time_us,
        covers_outcomes=message.covers_outcomes,
        confidences=_confidences(message),
    )


def _addresses(message: pb.Drafts) -> tuple[str, ...]:
    for address in message.addresses:
        if not _ADDRESS.fullmatch(address):
            raise ProtocolError(f"{address!r:.80} is no draft's address: host:port is due")
    return tuple(message.addresses)


def _confidences(message: pb.Proposal) -> tuple[float, ...]:
    if len(message.confidences) not in (0, len(message.token_ids)):
        raise ProtocolError(
            f"{len(message.confidences)} confidences for {len(message.token_ids)} tokens: one for "
            "each or none are due"
        )
    return tuple(message.confidences)


def _distributions(message: pb.Proposal) -> TruncatedDistributions | None:
    shape = (len(message.token_ids), message.support)
    num_bytes = shape[0] * shape[1] * _ID_TYPE.itemsize
    sizes = (len(message.support_token_ids), len(message.support_probabilities))
    if sizes != (num_bytes, num_bytes):
        raise ProtocolError(
            f"matrices of {sizes[0]} and {sizes[1]} bytes for {shape[0]} tokens with a support of "
            f"{shape[1]}: {num_bytes} bytes each are due"
        )
    if message.support == 0:
        return None
    return TruncatedDistributions(
        np.frombuffer(message.support_token_ids, _ID_TYPE).reshape(shape),
        np.frombuffer(message.support_probabilities, _PROBABILITY_TYPE).reshape(shape),
    )
