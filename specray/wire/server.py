"""gRPC servers for synchronous engines: each lives in its own thread with its own loop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import grpc

from specray.errors import StartupError
from specray.types import ProposalFrame, SessionFrame, SpeculationPolicy
from specray.wire import codec, control_codec, rpc, split
from specray.wire import speculation_pb2 as pb
from specray.wire.interceptor import Gate
from specray.wire.loop_thread import LoopThread, first_of
from specray.wire.merge import merge_proposal_frames, merge_session_frames
from specray.wire.outbox import Outbox
from specray.wire.stats import TargetStats

In = TypeVar("In")
Out = TypeVar("Out")
Out_co = TypeVar("Out_co", covariant=True)
In_contra = TypeVar("In_contra", contravariant=True)
Out_contra = TypeVar("Out_contra", contravariant=True)

_START_TIMEOUT_S = 10.0


class Peer(Protocol[Out_contra]):
    """One router's stream."""

    @property
    def name(self) -> str:
        """The router's id."""

    def send(self, frame: Out_contra) -> None:
        """Queue a frame, from any thread; a peer that is gone or overflows is not the caller's."""


class PeerHandler(Protocol[In_contra, Out_co]):
    """Told what happens on the streams, on the server's thread: it must not block."""

    def connected(self, peer: Peer[Out_co]) -> None:
        """A router has opened a stream."""

    def received(self, peer: Peer[Out_co], frame: In_contra) -> None:
        """A frame has arrived."""

    def disconnected(self, peer: Peer[Out_co]) -> None:
        """The stream has ended; called once for every `connected` that returned."""


class TargetControl(Protocol):
    """The unary part of a target, called on the server's thread."""

    def configure(self, policy: SpeculationPolicy) -> None:
        """Replace the live policy."""

    def stats(self) -> TargetStats:
        """The counters since the start."""


class RunningServer:
    """A server that listens; `address` is where."""

    def __init__(self, service: "_Service", host: str) -> None:
        """Listen on a TCP port of `host` that the system chooses.

        Raises:
            StartupError: the port could not be bound, the server did not start in time, or the
                streams' token is faulty.
        """
        rpc.stream_token()  # a faulty one is found out here
        self._thread = LoopThread(f"specray-{service.name}")
        try:
            self._server, port = self._thread.run(_start(service, host), _START_TIMEOUT_S)
        except (RuntimeError, TimeoutError) as error:
            self._thread.stop()
            raise StartupError(f"{service.name} can't listen on {host!r}: {error!r}") from error
        self.address = f"{_bracketed(host)}:{port}"
        self._is_running = True

    @property
    def thread_id(self) -> int:
        """Native id of the thread that serves the streams."""
        return self._thread.native_id

    def stop(self, grace_s: float) -> None:
        """Refuse new streams, end those that are left after `grace_s`, join the thread."""
        if self._is_running:
            self._is_running = False
            self._thread.run(self._server.stop(grace_s))
            self._thread.stop()


def serve_draft(handler: PeerHandler[SessionFrame, ProposalFrame], host: str) -> RunningServer:
    """Serve the `Draft` service on a free port of `host`.

    Raises:
        StartupError: it could not listen there.
    """
    method = _StreamMethod(
        handler, codec.decode_session_frame, split.proposal_messages, merge_proposal_frames
    )
    methods = {rpc.SPECULATE: grpc.stream_stream_rpc_method_handler(method)}
    return RunningServer(_Service(rpc.DRAFT_SERVICE, methods, rpc.MAX_SESSION_FRAME_BYTES), host)


def serve_target(
    handler: PeerHandler[ProposalFrame, SessionFrame], control: TargetControl, host: str
) -> RunningServer:
    """Serve the `Target` service on a free port of `host`.

    Raises:
        StartupError: it could not listen there.
    """
    method = _StreamMethod(
        handler, codec.decode_proposal_frame, split.session_messages, merge_session_frames
    )

    async def configure(request: bytes, _context: Any) -> bytes:
        control.configure(control_codec.decode_policy(request))
        return pb.Empty().SerializeToString()

    async def get_stats(_request: bytes, _context: Any) -> bytes:
        return control_codec.encode_stats(control.stats())

    methods = {
        rpc.ATTACH: grpc.stream_stream_rpc_method_handler(method),
        rpc.CONFIGURE: grpc.unary_unary_rpc_method_handler(configure),
        rpc.GET_STATS: grpc.unary_unary_rpc_method_handler(get_stats),
    }
    return RunningServer(_Service(rpc.TARGET_SERVICE, methods, rpc.MAX_PROPOSAL_FRAME_BYTES), host)


@dataclass(frozen=True, slots=True)
class _Service:
    name: str
    methods: dict[str, Any]
    max_receive_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _StreamPeer(Generic[Out]):
    name: str
    outbox: Outbox[Out]

    def send(self, frame: Out) -> None:
        self.outbox.put(frame)


class _StreamMethod(Generic[In, Out]):
    """The behaviour of a bidirectional method; bytes in and out, so that errors are ours."""

    def __init__(
        self,
        handler: PeerHandler[In, Out],
        decode: Callable[[bytes], In],
        encode: Callable[[Out], Iterable[bytes]],
        merge: Callable[[Out, Out], Out | None],
    ) -> None:
        self._handler = handler
        self._decode = decode
        self._encode = encode
        self._merge = merge

    async def __call__(self, _requests: Any, context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        peer = _StreamPeer(metadata[rpc.ROUTER_KEY], Outbox(self._merge))
        self._handler.connected(peer)
        try:
            # Tells the router that the application, not just the kernel, has taken the stream.
            await context.send_initial_metadata(((rpc.PROTOCOL_KEY, rpc.PROTOCOL_VERSION),))
            await first_of(
                self._receive(peer, context),
                self._transmit(peer, context),
                peer.outbox.fail_when_full(),  # also while a write waits for the peer to read
            )
        finally:
            peer.outbox.close()
            self._handler.disconnected(peer)

    async def _receive(self, peer: _StreamPeer[Out], context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            self._handler.received(peer, self._decode(data))

    async def _transmit(self, peer: _StreamPeer[Out], context: Any) -> None:
        while True:
            for data in self._encode(await peer.outbox.take()):
                try:
                    await context.write(data)
                except (grpc.aio.InternalError, grpc.aio.UsageError):
                    return  # the router has gone; gRPC is about to cancel this call


async def _start(service: _Service, host: str) -> tuple[Any, int]:
    server = grpc.aio.server(
        interceptors=(Gate(),), options=rpc.server_options(service.max_receive_bytes)
    )
    handler = grpc.method_handlers_generic_handler(service.name, service.methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port(f"{_bracketed(host)}:0")
    await server.start()
    return server, port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host  # IPv6
