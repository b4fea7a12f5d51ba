"""The calling end of the protocol: streams to drafts and targets, and a target's control."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import grpc

from specray.errors import ProtocolError, StreamClosedError
from specray.types import ProposalFrame, SessionFrame, SpeculationPolicy
from specray.wire import codec, control_codec, rpc, split
from specray.wire.merge import merge_proposal_frames, merge_session_frames
from specray.wire.outbox import Outbox
from specray.wire.stats import TargetStats

logger = logging.getLogger(__name__)

In = TypeVar("In")
Out = TypeVar("Out")

TIMEOUT_S = 2.0
"""How long a connection or a unary call may take."""

_UNARY_OPTIONS = rpc.channel_options(rpc.MAX_SESSION_FRAME_BYTES)
# A dead peer shows as either: a write to a finished call raises InvalidStateError.
_GONE = (grpc.RpcError, asyncio.InvalidStateError)


def _ignore(_num_bytes: int) -> None: ...


class Stream(Generic[In, Out]):
    """One long-lived stream: iterate it for frames, `send` frames into it. Has one reader."""

    def __init__(
        self,
        address: str,
        channel: Any,
        call: Any,
        decode: Callable[[bytes], In],
        encode: Callable[[Out], Iterable[bytes]],
        merge: Callable[[Out, Out], Out | None],
        note_sent: Callable[[int], None] = _ignore,
    ) -> None:
        self.address = address
        self.num_bytes_received = 0
        self._channel = channel
        self._call = call
        self._decode = decode
        self._encode = encode
        self._note_sent = note_sent
        self._outbox: Outbox[Out] = Outbox(merge)
        self._is_closing = False
        call.add_done_callback(lambda _call: self._outbox.close())
        self._writer = asyncio.ensure_future(self._write())

    def send(self, frame: Out) -> None:
        """Queue a frame; never blocks.

        Raises:
            StreamClosedError: the stream has ended, or the queue is full, which ends it.
        """
        if not self._outbox.put(frame):
            self._call.cancel()
            raise StreamClosedError(f"the stream to {self.address} has ended or is not read")

    def __aiter__(self) -> "Stream[In, Out]":
        return self

    async def __anext__(self) -> In:
        """The next frame; iteration just ends after `close`.

        Raises:
            StreamClosedError: the stream ended otherwise, or brought a malformed frame.
        """
        try:
            data = await self._call.read()
        except asyncio.CancelledError:
            data = self._cancelled()
        except _GONE as error:
            raise StreamClosedError(f"{self.address}: {_describe(error)}") from error
        if data is grpc.aio.EOF:
            if self._is_closing:
                raise StopAsyncIteration
            raise StreamClosedError(f"{self.address} ended the stream with status OK")
        self.num_bytes_received += len(data)
        try:
            return self._decode(data)
        except ProtocolError as error:
            self._call.cancel()
            raise StreamClosedError(f"{self.address} sent a malformed frame: {error}") from error

    def cancel(self) -> None:
        """End the stream; the reader's iteration ends, and it still has to `close`."""
        self._is_closing = True
        self._outbox.close()
        self._call.cancel()

    async def close(self) -> None:
        """End the stream and release the connection. Idempotent."""
        self.cancel()
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        await self._channel.close()

    def _cancelled(self) -> Any:
        """Tell the reader's own cancellation (raised on) from that of the call."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        if self._is_closing:
            return grpc.aio.EOF
        raise StreamClosedError(f"{self.address}: the stream was given up at this end")

    async def _write(self) -> None:
        try:
            while True:
                for data in self._encode(await self._outbox.take()):
                    self._note_sent(len(data))  # before the peer can answer
                    await self._call.write(data)
        except _GONE:
            pass  # the reader hears why
        except Exception:  # a fault of ours: the stream ends, so that sessions find other drafts
            logger.exception("can't write to %s", self.address)
            self._call.cancel()
        finally:
            self._outbox.close()


async def connect_draft(
    address: str, router_id: str, note_sent: Callable[[int], None] = _ignore
) -> Stream[ProposalFrame, SessionFrame]:
    """Open the stream that carries all sessions of `router_id` on one draft.

    Args:
        address: the draft's.
        router_id: what the draft is to know the router by.
        note_sent: told of each frame that leaves, by its size in bytes.

    Raises:
        StreamClosedError: nobody answered within `TIMEOUT_S`, or the stream was refused.
    """
    options = rpc.channel_options(rpc.MAX_PROPOSAL_FRAME_BYTES)
    channel, call = await _connect(address, router_id, rpc.DRAFT_SERVICE, rpc.SPECULATE, options)
    return Stream(
        *(address, channel, call),
        codec.decode_proposal_frame,
        split.session_messages,
        merge_session_frames,
        note_sent,
    )


async def connect_target(address: str, router_id: str) -> Stream[SessionFrame, ProposalFrame]:
    """Open the stream that carries all requests that came to one target through `router_id`.

    Raises:
        StreamClosedError: nobody answered within `TIMEOUT_S`, or the stream was refused.
    """
    options = rpc.channel_options(rpc.MAX_SESSION_FRAME_BYTES)
    channel, call = await _connect(address, router_id, rpc.TARGET_SERVICE, rpc.ATTACH, options)
    return Stream(
        *(address, channel, call),
        codec.decode_session_frame,
        split.proposal_messages,
        merge_proposal_frames,
    )


async def configure(address: str, policy: SpeculationPolicy) -> None:
    """Replace the live policy of the target at `address`.

    Raises:
        StreamClosedError: it did not answer within `TIMEOUT_S`, or refused.
    """
    await _ask(address, rpc.CONFIGURE, control_codec.encode_policy(policy))


async def get_stats(address: str) -> TargetStats:
    """The counters of the target at `address`.

    Raises:
        StreamClosedError: it did not answer within `TIMEOUT_S`, or refused.
    """
    return control_codec.decode_stats(await _ask(address, rpc.GET_STATS, b""))


async def _connect(
    address: str, router_id: str, service: str, method: str, options: tuple[tuple[str, int], ...]
) -> tuple[Any, Any]:
    channel = grpc.aio.insecure_channel(address, options=options)
    metadata = (*rpc.credentials(), (rpc.ROUTER_KEY, router_id))
    call = channel.stream_stream(rpc.method_path(service, method))(metadata=metadata)
    is_accepted = False
    try:
        async with asyncio.timeout(TIMEOUT_S):
            is_accepted = rpc.PROTOCOL_KEY in {key for key, _ in await call.initial_metadata()}
            if not is_accepted:
                await call.read()  # raises the status of the refusal
                raise StreamClosedError(f"{address} is not a specray server")
    except (*_GONE, TimeoutError) as error:
        raise StreamClosedError(f"can't connect to {address}: {_describe(error)}") from error
    finally:
        if not is_accepted:
            call.cancel()
            await channel.close()
    return channel, call


async def _ask(address: str, method: str, request: bytes) -> bytes:
    async with grpc.aio.insecure_channel(address, options=_UNARY_OPTIONS) as channel:
        call = channel.unary_unary(rpc.method_path(rpc.TARGET_SERVICE, method))
        try:
            answer: bytes = await call(request, timeout=TIMEOUT_S, metadata=rpc.credentials())
        except _GONE as error:
            raise StreamClosedError(f"{method} at {address}: {_describe(error)}") from error
        return answer


def _describe(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return f"no answer within {TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else repr(error)
