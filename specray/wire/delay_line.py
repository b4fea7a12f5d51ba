"""A TCP forwarder that adds a network's round trip, for experiments: half of it each way.

A process of its own, so that no interpreter lock adds to the delay:

    python -m specray.wire.delay_line HOST:PORT RTT_MS

prints the address it listens on, takes a new round trip in ms with each line on stdin, and ends
with stdin. Threads and blocking sockets, since asyncio rounds its sleeps up to whole milliseconds.
"""

import contextlib
import queue
import socket
import sys
import threading
import time
from typing import NamedTuple

from specray.errors import StartupError

_CHUNK_BYTES = 1 << 16


class _Chunk(NamedTuple):
    due_s: float  # monotonic
    data: bytes  # empty at the end of the stream


class DelayLine:
    """Listens from construction until `stop`; bytes arrive late, complete and in order."""

    def __init__(self, address: str, rtt_ms: float) -> None:
        """Listen on a free port of the same host as what is forwarded to.

        Args:
            address: "host:port" of what is forwarded to.
            rtt_ms: the round trip to be added; half of it delays each direction.

        Raises:
            StartupError: the port could not be bound.
        """
        host, _, port = address.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self.rtt_ms = rtt_ms  # may change at any time, for what arrives from then on
        family = socket.AF_INET6 if ":" in self._target[0] else socket.AF_INET
        try:
            self._listener = socket.create_server((self._target[0], 0), family=family)
        except OSError as error:
            raise StartupError(f"the delay line can't listen on {host}: {error}") from error
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()  # guards what follows
        self._sockets: set[socket.socket] = set()
        self._is_stopped = False
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Refuse new connections and end those that are open; what is under way is lost."""
        with self._lock:
            self._is_stopped = True
            connections = tuple(self._sockets)
        for connection in (self._listener, *connections):
            _end(connection)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # stopped
            try:
                far = socket.create_connection(self._target)
            except OSError:  # what is forwarded to has gone
                _end(near)
                continue
            with self._lock:
                self._sockets |= {near, far}
                if self._is_stopped:
                    _end(near)
                    _end(far)
                    return
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in ((near, far), (far, near)):
                chunks: queue.SimpleQueue[_Chunk] = queue.SimpleQueue()
                for work, end in ((self._take, source), (self._pass_on, sink)):
                    threading.Thread(target=work, args=(end, chunks), daemon=True).start()

    def _take(self, source: socket.socket, chunks: "queue.SimpleQueue[_Chunk]") -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            chunks.put(_Chunk(time.monotonic() + self.rtt_ms / 2e3, data))

    def _pass_on(self, sink: socket.socket, chunks: "queue.SimpleQueue[_Chunk]") -> None:
        """One after the other, so that a delay that has become shorter reorders nothing."""
        while True:
            chunk = chunks.get()
            time.sleep(max(0.0, chunk.due_s - time.monotonic()))
            if not chunk.data:
                break
            try:
                sink.sendall(chunk.data)
            except OSError:
                break
        with self._lock:
            self._sockets.discard(sink)
        _end(sink)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # wakes whoever reads or accepts; it may be gone already
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def main() -> None:
    """Forwards until stdin ends, which it does with the process that started this one."""
    address, rtt_ms = sys.argv[1:]
    line = DelayLine(address, float(rtt_ms))
    sys.stdout.write(f"{line.address}\n")
    sys.stdout.flush()
    for text in sys.stdin:
        line.rtt_ms = float(text)
    line.stop()


if __name__ == "__main__":
    main()
