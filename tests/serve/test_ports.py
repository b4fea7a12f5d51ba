import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from specray.errors import InvalidConfigError
from specray.serve.ports import check_port, free_port, is_healthy


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as Ray's proxy does
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_on_which_somebody_listens_is_refused(listener: socket.socket, host: str) -> None:
    port = listener.getsockname()[1]

    with pytest.raises(InvalidConfigError, match=rf"port {port} on {host} .*in use.*--port"):
        check_port(host, port)


def test_a_free_port_is_left_free(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    listener.close()

    check_port(host, port)
    check_port(host, port)


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 70000), ("127.0.0.1", -1), ("192.0.2.1", 8000)]
)
def test_what_can_not_be_a_port_here_is_refused(host: str, port: int) -> None:
    with pytest.raises(InvalidConfigError, match=rf"port {port} on {host} can't be used"):
        check_port(host, port)


def test_a_port_is_found_that_no_connection_is_given_before_a_server_starts() -> None:
    first_of_connections = int(
        Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    )
    for _ in range(20):
        port = free_port()
        check_port("127.0.0.1", port)
        assert 19_999 < port < first_of_connections


def test_a_port_that_nobody_serves_is_not_healthy() -> None:
    assert not is_healthy(f"http://127.0.0.1:{free_port()}")
