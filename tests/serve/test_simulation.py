import socket
import time
from collections.abc import Iterator

import pytest

from specray.config import SimulationConfig
from specray.serve.simulation import Simulation

PATIENCE_S = 5.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


def test_the_draft_is_reached_through_the_delay_line_until_it_stops(
    listener: socket.socket,
) -> None:
    simulation = Simulation(SimulationConfig(rtt_ms=100.0, pass_ms=3.0))
    assert simulation.slowness.pass_ms == 3.0

    delayed = simulation.start(f"127.0.0.1:{listener.getsockname()[1]}")
    host, _, port = delayed.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        server, _ = listener.accept()
        with server:
            started_s = time.monotonic()
            client.sendall(b"x")
            assert server.recv(1) == b"x"
            assert time.monotonic() - started_s >= 0.05
            simulation.set(SimulationConfig(rtt_ms=0.0, pass_ms=7.0))
            assert simulation.slowness.pass_ms == 7.0
            simulation.set(None)
            assert simulation.slowness.pass_ms == 3.0
            simulation.stop()
            simulation.stop()
            assert client.recv(1) == b""
