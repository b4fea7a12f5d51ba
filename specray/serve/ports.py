"""Ports of this machine, for servers that take some seconds to start."""

import random
import socket
from contextlib import suppress

import httpx

from specray.errors import InvalidConfigError, StartupError

_PORTS = range(20_000, 32_768)  # above Ray's workers', below those of outgoing connections
_TRIES = 100


def free_port() -> int:
    """A port that nobody uses, and that no connection will.

    Those that the kernel hands out itself (`ip_local_port_range`, from 32768 on) may go to one of
    the many connections that Ray makes before the server that was to have it is there.

    Raises:
        StartupError: none was found.
    """
    for port in random.sample(_PORTS, _TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))  # used on no interface, as Ray's metrics listen on all
            return port
    raise StartupError(f"no free port among {_TRIES} from {_PORTS[0]} to {_PORTS[-1]}")


def check_port(host: str, port: int) -> None:
    """See that nobody listens there: Ray's proxy would share the port silently (SO_REUSEPORT).

    Raises:
        InvalidConfigError: the port is taken or not allowed.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidConfigError(
                f"port {port} on {host} can't be used ({reason}); is another `specray "
                "serve` running? Stop it, or choose another port with --port (make serve PORT=...)"
            ) from None


def is_healthy(url: str) -> bool:
    """Whether a server answers there and says that it is well."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
