"""A service for the length of a measurement: `specray serve` as a child process."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from specray.errors import StartupError

READY = "ready: "
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.2
_LOG_TAIL_LINES = 20


@contextmanager
def run_service(config: str, command: Sequence[str] | None = None) -> Iterator[str]:
    """Starts the service, yields its URL once it is ready, and stops it whatever happens.

    Args:
        config: the file that `specray serve` takes.
        command: what to run instead.

    Raises:
        StartupError: if it ends or is not ready within five minutes; with the end of its log.
    """
    command = command or [sys.executable, "-m", "specray.cli", "serve", config]
    with tempfile.NamedTemporaryFile(prefix="specray-serve-", suffix=".log", delete=False) as log:
        # A session of its own: Ctrl-C reaches this process, which then stops the child in order.
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield _wait_until_ready(process, Path(log.name))
    finally:
        _stop(process)
    Path(log.name).unlink()  # kept when something went wrong


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        for line in lines:
            if line.startswith(READY) and line.endswith("\n"):
                return line.removeprefix(READY).strip()
        if process.poll() is not None:
            raise StartupError(
                f"the service ended with code {process.returncode}; its log is {log}:\n"
                + "".join(lines[-_LOG_TAIL_LINES:])
            )
        time.sleep(_POLL_S)
    raise StartupError(f"the service was not ready after {START_TIMEOUT_S:.0f} s; see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
