import asyncio
import socket
import threading
from collections.abc import Iterator

import grpc
import pytest

from specray.errors import StreamClosedError
from specray.types import ProposalFrame, SessionFrame, SpeculationPolicy
from specray.wire import client
from specray.wire.outbox import MAX_FRAMES
from specray.wire.server import RunningServer, serve_draft, serve_target
from specray.wire.stats import TargetStats
from tests.wire.fakes import RecordingControl, RecordingHandler

HOST = "127.0.0.1"


@pytest.fixture
def control() -> RecordingControl:
    return RecordingControl()


@pytest.fixture
def target(control: RecordingControl) -> Iterator[RunningServer]:
    handler: RecordingHandler[ProposalFrame, SessionFrame] = RecordingHandler()
    server = serve_target(handler, control, HOST)
    yield server
    server.stop(0)


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return f"{HOST}:{probe.getsockname()[1]}"


def test_configure_and_stats(target: RunningServer, control: RecordingControl) -> None:
    control.counters.num_committed = 42
    policy = SpeculationPolicy(is_enabled=False, max_depth=3, max_wait_ms=7.5)

    async def ask() -> TargetStats:
        await client.configure(target.address, policy)
        return await client.get_stats(target.address)

    assert asyncio.run(ask()) == control.counters
    assert control.policies == [policy]


def test_a_server_names_the_thread_that_serves(
    target: RunningServer, control: RecordingControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(control, "configure", lambda _: threads.append(threading.get_native_id()))
    asyncio.run(client.configure(target.address, SpeculationPolicy()))
    assert threads == [target.thread_id]


def test_unary_calls_name_who_did_not_answer() -> None:
    address = unused_address()

    with pytest.raises(StreamClosedError, match=f"{address}: UNAVAILABLE"):
        asyncio.run(client.get_stats(address))
    with pytest.raises(StreamClosedError, match=f"{address}: UNAVAILABLE"):
        asyncio.run(client.configure(address, SpeculationPolicy()))


def test_connecting_to_nobody_fails_at_once() -> None:
    address = unused_address()

    with pytest.raises(StreamClosedError, match=f"{address}: UNAVAILABLE"):
        asyncio.run(client.connect_draft(address, "r"))


def test_connecting_to_the_wrong_service_names_the_status(target: RunningServer) -> None:
    with pytest.raises(StreamClosedError, match="UNIMPLEMENTED"):
        asyncio.run(client.connect_draft(target.address, "r"))


def test_connecting_to_one_who_never_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.1)
    with socket.create_server((HOST, 0)) as mute:
        address = f"{HOST}:{mute.getsockname()[1]}"
        with pytest.raises(StreamClosedError, match=f"{address}: no answer within 0.1 s"):
            asyncio.run(client.connect_draft(address, "r"))


def test_closing_ends_the_iteration_quietly() -> None:
    handler: RecordingHandler[SessionFrame, ProposalFrame] = RecordingHandler()
    server = serve_draft(handler, HOST)

    async def close_while_reading() -> list[ProposalFrame]:
        stream = await client.connect_draft(server.address, "r")

        async def read() -> list[ProposalFrame]:
            return [frame async for frame in stream]

        reader = asyncio.create_task(read())
        (await asyncio.to_thread(handler.peer)).send(ProposalFrame(lost=(1,)))
        stream.cancel()
        frames = await reader
        await stream.close()
        with pytest.raises(StreamClosedError):
            stream.send(SessionFrame(closes=(1,)))
        return frames

    try:
        assert asyncio.run(close_while_reading()) in ([], [ProposalFrame(lost=(1,))])
    finally:
        server.stop(0)


def test_a_cancelled_reader_stays_cancelled() -> None:
    handler: RecordingHandler[SessionFrame, ProposalFrame] = RecordingHandler()
    server = serve_draft(handler, HOST)

    async def cancel() -> None:
        stream = await client.connect_draft(server.address, "r")
        reader = asyncio.create_task(anext(stream))
        await asyncio.to_thread(handler.peer)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await stream.close()

    try:
        asyncio.run(cancel())
        handler.gone()
    finally:
        server.stop(0)


def test_sending_to_one_who_does_not_read_ends_the_stream() -> None:
    async def never_reads(_requests: object, context: grpc.aio.ServicerContext) -> None:
        await context.send_initial_metadata((("specray-protocol", "1"),))
        await asyncio.Event().wait()

    async def flood() -> None:
        server = grpc.aio.server()
        methods = {"Speculate": grpc.stream_stream_rpc_method_handler(never_reads)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("specray.v1.Draft", methods),)
        )
        port = server.add_insecure_port(f"{HOST}:0")
        await server.start()
        stream = await client.connect_draft(f"{HOST}:{port}", "r")
        big = SessionFrame(closes=tuple(range(2**40, 2**40 + 5000)))
        for _ in range(MAX_FRAMES):  # the loop has no chance to write any
            stream.send(big)
        with pytest.raises(StreamClosedError, match="not read"):
            stream.send(big)
        with pytest.raises(StreamClosedError, match="given up at this end"):
            await anext(stream)
        await stream.close()
        await server.stop(0)

    asyncio.run(flood())


def test_a_malformed_frame_ends_the_stream() -> None:
    async def babbles(_requests: object, context: grpc.aio.ServicerContext) -> None:
        await context.send_initial_metadata((("specray-protocol", "1"),))
        await context.write(b"\xff\xff")
        await asyncio.Event().wait()

    async def listen() -> None:
        server = grpc.aio.server()
        methods = {"Speculate": grpc.stream_stream_rpc_method_handler(babbles)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("specray.v1.Draft", methods),)
        )
        port = server.add_insecure_port(f"{HOST}:0")
        await server.start()
        stream = await client.connect_draft(f"{HOST}:{port}", "r")
        with pytest.raises(StreamClosedError, match="malformed"):
            await anext(stream)
        await stream.close()
        await server.stop(0)

    asyncio.run(listen())
