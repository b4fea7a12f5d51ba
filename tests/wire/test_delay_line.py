import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from specray.wire.delay_line import DelayLine

PATIENCE_S = 5.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


@pytest.fixture
def make_line(listener: socket.socket) -> Iterator[Callable[[float], DelayLine]]:
    lines: list[DelayLine] = []

    def make(rtt_ms: float) -> DelayLine:
        lines.append(DelayLine(address_of(listener), rtt_ms))
        return lines[-1]

    yield make
    for line in lines:
        line.stop()


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def connect(address: str, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection through the line: the client's and the server's."""
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    server, _ = listener.accept()
    server.settimeout(PATIENCE_S)
    return client, server


def receive(end: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (more := end.recv(num_bytes - len(data))):
        data += more
    return data


def test_each_direction_takes_half_of_the_round_trip(
    make_line: Callable[[float], DelayLine], listener: socket.socket
) -> None:
    client, server = connect(make_line(100.0).address, listener)
    with client, server:
        for source, sink in ((client, server), (server, client)):
            started_s = time.monotonic()
            source.sendall(b"hello")
            assert receive(sink, 5) == b"hello"
            assert time.monotonic() - started_s >= 0.05


def test_messages_in_a_row_arrive_in_order_and_none_too_early(
    make_line: Callable[[float], DelayLine], listener: socket.socket
) -> None:
    client, server = connect(make_line(200.0).address, listener)
    with client, server:
        due_s = []
        for number in range(10):
            due_s.append(time.monotonic() + 0.1)
            client.sendall(bytes([number]))
            time.sleep(0.01)
        arrived = b""
        arrivals_s = []
        while len(arrived) < 10:
            arrived += server.recv(1)
            arrivals_s.append(time.monotonic())
        assert arrived == bytes(range(10))
        assert all(at >= due - 1e-3 for at, due in zip(arrivals_s, due_s, strict=True))


def test_a_delay_that_becomes_shorter_reorders_nothing(
    make_line: Callable[[float], DelayLine], listener: socket.socket
) -> None:
    line = make_line(600.0)
    client, server = connect(line.address, listener)
    with client, server:
        client.sendall(b"first ")
        time.sleep(0.1)  # so that the line has most likely taken it at the old delay
        line.rtt_ms = 0.0
        client.sendall(b"second")
        assert receive(server, 12) == b"first second"


def test_large_amounts_arrive_complete(
    make_line: Callable[[float], DelayLine], listener: socket.socket
) -> None:
    client, server = connect(make_line(2.0).address, listener)
    data = bytes(range(256)) * 1000
    with client, server:
        client.sendall(data)
        assert receive(server, len(data)) == data


@pytest.mark.parametrize("closes", ["client", "server", "line"])
def test_when_one_end_goes_the_other_hears_of_it(
    make_line: Callable[[float], DelayLine], listener: socket.socket, closes: str
) -> None:
    line = make_line(2.0)
    client, server = connect(line.address, listener)
    with client, server:
        {"client": client.close, "server": server.close, "line": line.stop}[closes]()
        if closes != "client":
            assert client.recv(1) == b""
        if closes != "server":
            assert server.recv(1) == b""


def test_a_stopped_line_refuses_connections(make_line: Callable[[float], DelayLine]) -> None:
    line = make_line(0.0)
    line.stop()
    host, _, port = line.address.rpartition(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def test_what_is_forwarded_to_may_be_gone(make_line: Callable[[float], DelayLine]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = address_of(gone)
    line = DelayLine(address, 0.0)
    host, _, port = line.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        assert client.recv(1) == b""
    line.stop()


def test_the_process_takes_other_delays_and_ends_with_its_parents_pipe(
    listener: socket.socket,
) -> None:
    command = [sys.executable, "-m", "specray.wire.delay_line", address_of(listener), "0"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    client, server = connect(process.stdout.readline().strip(), listener)
    with client, server:
        process.stdin.write("100\n")
        process.stdin.flush()
        for _ in range(100):  # until it has read the line
            started_s = time.monotonic()
            client.sendall(b"x")
            assert receive(server, 1) == b"x"
            if time.monotonic() - started_s >= 0.05:
                break
        else:
            raise AssertionError("the delay was not taken over")
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
