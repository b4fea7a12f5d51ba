"""A service for the length of a measurement: `specray serve` as a child process."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specray.errors import StartupError

READY = "ready: "
START_TIMEOUT_S = 3600.0  # weights may have to come from a hub; what fails ends much earlier
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.2
_LOG_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Running:
    """A service that answers at `url`."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path  # what it says

    def lines(self) -> list[str]:
        """What it has said so far, in whole lines."""
        return _lines(self.log)

    def said(self, start: str) -> str:
        """The rest of the first line that begins so; empty if there is none."""
        return next((x.removeprefix(start) for x in self.lines() if x.startswith(start)), "")


@contextmanager
def run_service(config: str, command: Sequence[str] | None = None) -> Iterator[str]:
    """Starts the service, yields its URL once it is ready, and stops it whatever happens.

    Args:
        config: the file that `specray serve` takes.
        command: what to run instead.

    Raises:
        StartupError: if it ends or is not ready within an hour; with the end of its log.
    """
    with running(command or serve_command(config), find_ready_url) as service:
        yield service.url


def serve_command(config: str, *options: str) -> list[str]:
    """`specray serve` on a config file."""
    patience = ["--start-timeout", f"{START_TIMEOUT_S:g}"]
    return [sys.executable, "-m", "specray.cli", "serve", *options, *patience, config]


def find_ready_url(lines: Sequence[str]) -> str | None:
    """The URL that `specray serve` prints when it is ready."""
    found = (line.removeprefix(READY).strip() for line in lines if line.startswith(READY))
    return next(found, None)


@contextmanager
def running(
    command: Sequence[str],
    find_url: Callable[[Sequence[str]], str | None],
    env: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Starts a service, yields it once it is ready, and stops it whatever happens.

    SIGTERM, too, raises KeyboardInterrupt meanwhile, or it would leave the service running.

    Args:
        command: what to run.
        find_url: finds the URL in the lines that it has said, once it is ready.
        env: variables of its environment besides ours.

    Raises:
        StartupError: if it ends or is not ready within an hour; with the end of its log.
    """
    with tempfile.NamedTemporaryFile(prefix="specray-serve-", suffix=".log", delete=False) as log:
        # A session of its own: Ctrl-C reaches this process, which then stops the child in order.
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    path = Path(log.name)
    try:
        with _interrupted_by_sigterm():
            yield Running(_wait_until_ready(process, path, find_url), process, path)
    finally:
        _stop(process)
    path.unlink()  # kept when something went wrong


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_until_ready(
    process: subprocess.Popen[bytes], log: Path, find_url: Callable[[Sequence[str]], str | None]
) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        lines = _lines(log)
        if (url := find_url(lines)) is not None:
            return url
        if process.poll() is not None:
            raise StartupError(
                f"the service ended with code {process.returncode}; its log is {log}:\n"
                + "\n".join(lines[-_LOG_TAIL_LINES:])
            )
        time.sleep(_POLL_S)
    raise StartupError(f"the service was not ready after {START_TIMEOUT_S:.0f} s; see {log}")


def _lines(log: Path) -> list[str]:
    whole, _, _ = log.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    return whole.splitlines()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while not _has_ended(process) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    # What it has left behind would slow the next one down. Until it is waited for its number is
    # nobody else's; if somebody has done so already, it may be.
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
