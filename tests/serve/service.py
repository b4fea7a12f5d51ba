"""A real service in a child process: `specray serve` on a config of the test's."""

import copy
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import psutil
import yaml

from specray.serve.ports import free_port

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"
START_TIMEOUT_S = 420.0  # some 70 s when the machine is quiet
STOP_TIMEOUT_S = 60.0


def local_config(**draft: Any) -> dict[str, Any]:
    """`deployments/local.yaml` on a free port, with another draft."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deployments" / "local.yaml").read_text())
    config = copy.deepcopy(config)
    config["http_options"]["port"] = free_port()
    args = config["applications"][0]["args"]
    args["draft"] = args["draft"] | draft
    args["draft"]["deployment_config"]["ray_actor_options"]["num_cpus"] = 0
    return config


class Service:
    """A running `specray serve`; its lines so far, its processes, a client."""

    def __init__(self, process: subprocess.Popen[str], config_file: Path) -> None:
        self.process = process
        self.config_file = config_file
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """The base URL of the OpenAI API, from the line that `specray serve` prints."""
        return next(line for line in self.lines if line.startswith("ready: ")).split()[1]

    @property
    def metrics_url(self) -> str:
        return next(line for line in self.lines if line.startswith("metrics: ")).split()[1]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", timeout=120.0, max_retries=0)

    def wait_for_line(self, pattern: str, timeout_s: float) -> str:
        """Block until a line matches; fail with everything said if it does not come."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                line = self._queue.get(timeout=1.0)
            except queue.Empty:
                continue
            if line is None:
                break
            self.lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"no line matches {pattern!r} in:\n" + "\n".join(self.lines))

    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """The processes of a deployment's replicas."""
        return self.named(f"ServeReplica:specray:{deployment}")

    def named(self, title: str) -> list[psutil.Process]:
        """The processes in whose command line this stands."""
        return [p for p in self.processes() if any(title in part for part in _words(p))]

    def stop(
        self, with_signal: int = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S
    ) -> list[psutil.Process]:
        """End it as a user would; returns the processes that are left."""
        processes = self.processes() if self.process.poll() is None else []
        self.process.send_signal(with_signal)
        self.process.wait(timeout_s)
        left = psutil.wait_procs(processes, timeout=5.0)[1]
        if not left:  # else they hold the pipe open
            self._reader.join(STOP_TIMEOUT_S)
        return left

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)


def _words(process: psutil.Process) -> list[str]:
    """Its command line; none once it has ended."""
    with suppress(psutil.NoSuchProcess):
        words: list[str] = process.cmdline()
        return words
    return []


@contextmanager
def running(config: dict[str, Any], folder: Path, *options: str) -> Iterator[Service]:
    """Start a service, wait until it is ready; never leave a process behind."""
    config_file = folder / "config.yaml"
    config_file.write_text(yaml.safe_dump(config))
    service = Service(launch(config_file, *options), config_file)
    try:
        service.wait_for_line("^ready: ", START_TIMEOUT_S)
        yield service
    finally:
        left = service.stop() if service.process.poll() is None else []
        for process in left:
            process.kill()
    assert not left, f"left running: {left}"
    assert service.process.returncode == 0, "\n".join(service.lines)


def launch(config_file: Path, *options: str) -> subprocess.Popen[str]:
    """`specray serve FILE OPTION ...`, its output in one pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "specray.cli", "serve", str(config_file), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_metrics_report_interval_ms": "1000"},
    )
