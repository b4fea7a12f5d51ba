"""What a longer network and a slower draft would add to a draft replica: for experiments."""

import logging
import subprocess
import sys

from specray.config import SimulationConfig
from specray.draft.slowness import Slowness
from specray.errors import StartupError

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 5.0


class Simulation:
    """The delay and slowness of one replica, as last set."""

    def __init__(self, config: SimulationConfig) -> None:
        self.slowness = Slowness(config.pass_ms)
        self._start = config
        self._line: subprocess.Popen[str] | None = None

    def start(self, address: str) -> str:
        """Put a delay line in front of `address`, and return where it listens.

        Raises:
            StartupError: it did not start.
        """
        command = [
            sys.executable,
            "-m",
            "specray.wire.delay_line",
            address,
            str(self._start.rtt_ms),
        ]
        self._line = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if not (delayed := (self._line.stdout or sys.stdin).readline().strip()):
            raise StartupError(f"the delay line in front of {address} did not start")
        logger.warning("simulated: the draft at %s is reached by %s", address, delayed)
        return delayed

    def set(self, live: SimulationConfig | None) -> None:
        """Take over live values, or those of the start, for what comes from now on; logs that."""
        config = live or self._start
        self.slowness.pass_ms = config.pass_ms
        if self._line is not None and self._line.stdin is not None:
            self._line.stdin.write(f"{config.rtt_ms}\n")
            self._line.stdin.flush()
        logger.warning(config.announcement)

    def stop(self) -> None:
        """End the delay line. Idempotent."""
        if self._line is not None:
            self._line.communicate(timeout=_STOP_TIMEOUT_S)
            self._line = None
