import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from specray.errors import ProtocolError, SessionRejectedError, StartupError, StreamClosedError
from specray.types import Proposal, ProposalFrame, SessionFrame, TruncatedDistributions
from specray.wire import speculation_pb2 as pb
from specray.wire.client import connect_draft, connect_target
from specray.wire.outbox import MAX_FRAMES
from specray.wire.server import Peer, RunningServer, serve_draft, serve_target
from tests.wire.fakes import PATIENCE_S, RecordingControl, RecordingHandler

HOST = "127.0.0.1"
SPECULATE = "/specray.v1.Draft/Speculate"
CURRENT = (("specray-protocol", "1"), ("specray-router", "r"))

BIG = ProposalFrame(lost=tuple(range(2**40, 2**40 + 5000)))

DraftHandler = RecordingHandler[SessionFrame, ProposalFrame]


@pytest.fixture
def handler() -> DraftHandler:
    return RecordingHandler()


@pytest.fixture
def server(handler: DraftHandler) -> Iterator[RunningServer]:
    server = serve_draft(handler, HOST)
    yield server
    server.stop(0)


def open_raw(
    address: str, metadata: tuple[tuple[str, str], ...], *requests: bytes
) -> grpc.RpcError:
    """The error with which a stream ends that another implementation of the protocol opened."""
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(SPECULATE)(
            iter(requests), metadata=metadata, timeout=PATIENCE_S
        )
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    return caught.value


def test_frames_travel_both_ways_and_name_the_router(
    server: RunningServer, handler: DraftHandler
) -> None:
    async def talk() -> ProposalFrame:
        stream = await connect_draft(server.address, "router-7")
        stream.send(SessionFrame(closes=(3, 4)))
        peer = await asyncio.to_thread(handler.peer)
        assert peer.name == "router-7"
        assert await asyncio.to_thread(handler.frame) == SessionFrame(closes=(3, 4))
        peer.send(ProposalFrame(lost=(4,)))
        answer = await anext(stream)
        await stream.close()
        return answer

    assert asyncio.run(talk()) == ProposalFrame(lost=(4,))


def test_frames_keep_their_order_whatever_is_merged(
    server: RunningServer, handler: DraftHandler
) -> None:
    num_frames = 500

    async def read() -> list[int]:
        stream = await connect_draft(server.address, "r")
        peer = await asyncio.to_thread(handler.peer)
        for number in range(num_frames):
            peer.send(ProposalFrame(lost=(number,)))
        numbers: list[int] = []
        while len(numbers) < num_frames:
            numbers += (await anext(stream)).lost
        await stream.close()
        return numbers

    assert asyncio.run(read()) == list(range(num_frames))


@pytest.mark.parametrize(
    ("metadata", "status", "details"),
    [
        ((("specray-protocol", "2.1"), ("specray-router", "r")), "FAILED_PRECONDITION", "2.1"),
        ((("specray-router", "r"),), "FAILED_PRECONDITION", "protocol none"),
        ((("specray-protocol", "1"),), "INVALID_ARGUMENT", "specray-router"),
    ],
)
def test_a_stranger_is_told_what_is_wrong(
    server: RunningServer,
    handler: DraftHandler,
    metadata: tuple[tuple[str, str], ...],
    status: str,
    details: str,
) -> None:
    error = open_raw(server.address, metadata)

    assert error.code().name == status
    assert details in error.details()
    assert handler.num_gone == 0


@pytest.mark.parametrize("token", ["", "wrong", "rightx"])
def test_who_has_not_the_token_is_refused(
    server: RunningServer,
    handler: DraftHandler,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPECRAY_STREAM_TOKEN", "right\n")  # as a file's end

    error = open_raw(server.address, (*CURRENT, ("specray-token", token)))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "SPECRAY_STREAM_TOKEN" in error.details()
    assert "right" not in error.details()
    assert handler.num_gone == 0


@pytest.mark.parametrize("token", ["schlüssel", "two\nlines"])
def test_a_token_that_no_header_can_hold_ends_the_start(
    handler: DraftHandler, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECRAY_STREAM_TOKEN", token)

    with pytest.raises(StartupError, match="must be printable ASCII"):
        serve_draft(handler, "127.0.0.1")


def test_who_has_the_token_is_welcome(
    server: RunningServer, handler: DraftHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECRAY_STREAM_TOKEN", "right")

    async def talk() -> None:
        await (await connect_draft(server.address, "r")).close()

    asyncio.run(talk())
    assert handler.gone() is handler.peer()


def test_a_minor_version_is_welcome(server: RunningServer, handler: DraftHandler) -> None:
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream(SPECULATE)(
            iter(()), metadata=(("specray-protocol", "1.3"), ("specray-router", "r"))
        )
        assert list(call) == []  # ends well: a client that has said all may leave
    assert handler.gone() is handler.peer()


@pytest.mark.parametrize("request_bytes", [b"\xff\xff", b"not a frame"])
def test_a_malformed_frame_ends_the_stream(
    server: RunningServer, handler: DraftHandler, request_bytes: bytes
) -> None:
    error = open_raw(server.address, CURRENT, request_bytes)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert handler.gone() is handler.peer()


class FailingHandler(RecordingHandler[SessionFrame, ProposalFrame]):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def received(self, peer: Peer[ProposalFrame], frame: SessionFrame) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status", "details"),
    [
        (ProtocolError("odd frame"), "INVALID_ARGUMENT", "odd frame"),
        (SessionRejectedError("too long"), "FAILED_PRECONDITION", "too long"),
        (ZeroDivisionError("oops"), "INTERNAL", "ZeroDivisionError: oops"),
    ],
)
def test_exceptions_become_statuses(error: Exception, status: str, details: str) -> None:
    handler = FailingHandler(error)
    server = serve_draft(handler, HOST)
    try:
        caught = open_raw(server.address, CURRENT, pb.SessionFrame().SerializeToString())
    finally:
        server.stop(0)

    assert (caught.code().name, caught.details()) == (status, details)
    assert handler.gone() is handler.peer()


def test_a_router_that_does_not_read_is_cut_off(
    server: RunningServer, handler: DraftHandler
) -> None:
    async def ignore() -> None:
        stream = await connect_draft(server.address, "r")
        peer = await asyncio.to_thread(handler.peer)
        for _ in range(MAX_FRAMES + 200):
            peer.send(BIG)
        assert await asyncio.to_thread(handler.gone) is peer
        peer.send(BIG)  # harmless: whoever sends need not know
        with pytest.raises(StreamClosedError, match="RESOURCE_EXHAUSTED"):
            async for _ in stream:
                pass
        await stream.close()

    asyncio.run(ignore())
    assert handler.num_gone == 0  # told once


def test_a_router_that_reads_nothing_at_all_is_cut_off(
    server: RunningServer, handler: DraftHandler
) -> None:
    """A write waits for it for ever, so that nothing more is taken from the queue."""

    async def ignore() -> None:
        stream = await connect_draft(server.address, "r")
        peer = await asyncio.to_thread(handler.peer)
        for _ in range(2):
            for _ in range(MAX_FRAMES - 100):  # 30 MB, more than a connection takes unread
                peer.send(BIG)
            await asyncio.sleep(0.5)
        assert await asyncio.to_thread(handler.gone) is peer
        await stream.close()

    asyncio.run(ignore())


@pytest.mark.parametrize("num_frames", [1, 16])
def test_more_than_a_message_holds_arrives_in_several(
    server: RunningServer, handler: DraftHandler, num_frames: int
) -> None:
    """18 MB, where a router takes 16: of 1,700 sampled requests, or of a few at 16 frames' lag."""
    rows = TruncatedDistributions(np.zeros((5, 256), np.int32), np.full((5, 256), 1 / 256, "f4"))
    ids = [*range(1700 // num_frames)]
    frame = ProposalFrame(tuple(Proposal(i, 9, 7, (1,) * 5, "model", rows) for i in ids))

    async def read() -> list[int]:
        stream = await connect_draft(server.address, "r")
        peer = await asyncio.to_thread(handler.peer)
        for _ in range(num_frames):
            peer.send(frame)
        got: list[int] = []
        while len(got) < len(ids) * num_frames:
            got += (proposal.session_id for proposal in (await anext(stream)).proposals)
        await stream.close()
        return got

    assert asyncio.run(read()) == ids * num_frames


def test_a_closed_client_is_gone_once(server: RunningServer, handler: DraftHandler) -> None:
    async def visit() -> None:
        stream = await connect_draft(server.address, "r")
        await stream.close()

    asyncio.run(visit())
    peer = handler.gone()
    assert peer is handler.peer()
    peer.send(ProposalFrame(lost=(1,)))
    server.stop(0)
    assert handler.num_gone == 0


def test_stop_ends_streams_and_may_be_repeated(handler: DraftHandler) -> None:
    server = serve_draft(handler, HOST)

    async def stay() -> None:
        stream = await connect_draft(server.address, "r")
        await asyncio.to_thread(server.stop, 0)
        with pytest.raises(StreamClosedError, match=server.address):
            await anext(stream)
        await stream.close()

    asyncio.run(stay())
    server.stop(0)
    assert handler.gone() is handler.peer()
    assert handler.num_gone == 0


def test_the_port_is_exclusive(server: RunningServer) -> None:
    host, port = server.address.rsplit(":", 1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))


def test_a_host_that_is_not_ours_is_a_startup_error(handler: DraftHandler) -> None:
    with pytest.raises(StartupError, match=r"192\.0\.2\.1"):
        serve_draft(handler, "192.0.2.1")  # an address reserved for documentation


def test_a_host_may_be_an_ipv6_address(handler: DraftHandler) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    server = serve_draft(handler, "::1")
    assert server.address.startswith("[::1]:")

    async def connect() -> None:
        await (await connect_draft(server.address, "r")).close()

    try:
        asyncio.run(connect())
    finally:
        server.stop(0)


def test_the_target_service_carries_frames_the_other_way() -> None:
    handler: RecordingHandler[ProposalFrame, SessionFrame] = RecordingHandler()
    server = serve_target(handler, RecordingControl(), HOST)

    async def talk() -> Any:
        stream = await connect_target(server.address, "r")
        stream.send(ProposalFrame(lost=(9,)))
        peer = await asyncio.to_thread(handler.peer)
        peer.send(SessionFrame(closes=(1,)))
        frame = await anext(stream)
        # Before the end, which drops what is still on its way.
        assert await asyncio.to_thread(handler.frame) == ProposalFrame(lost=(9,))
        await stream.close()
        return frame

    try:
        assert asyncio.run(talk()) == SessionFrame(closes=(1,))
    finally:
        server.stop(0)
