import argparse
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from specray.cli import serve
from specray.cli.bench.service import START_TIMEOUT_S, run_service, serve_command
from specray.errors import StartupError

SERVICE = """
import pathlib, signal, sys
def stop(*_):
    pathlib.Path(sys.argv[1]).write_text("stopped in order")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("loading ...", flush=True)
print("ready: http://127.0.0.1:1234", flush=True)
signal.pause()
"""


def test_a_service_may_take_as_long_to_start_as_a_measurement_waits() -> None:
    *_, command, option, seconds, config = serve_command("local.yaml")
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)

    assert command == "serve"
    assert parser.parse_args([config, option, seconds]).start_timeout == START_TIMEOUT_S


def test_a_service_takes_options_of_the_command() -> None:
    command = serve_command("local.yaml", "--direct-streaming")
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)

    parsed = parser.parse_args(command[command.index("serve") + 1 :])

    assert parsed.direct_streaming
    assert parsed.config == Path("local.yaml")


def test_the_url_is_yielded_and_the_service_is_stopped(tmp_path: Path) -> None:
    note = tmp_path / "note"

    with run_service("unused", [sys.executable, "-c", SERVICE, str(note)]) as url:
        assert url == "http://127.0.0.1:1234"
        assert not note.exists()

    assert note.read_text() == "stopped in order"


FORGETFUL = """
import pathlib, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
print("ready: http://127.0.0.1:1234", flush=True)
signal.pause()
"""


def test_what_a_service_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    """It would slow the next measurement down."""
    note = tmp_path / "note"
    with run_service("unused", [sys.executable, "-c", FORGETFUL, str(note)]):
        child = psutil.Process(int(note.read_text()))
        assert child.is_running()

    psutil.wait_procs([child], timeout=10.0)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_the_service_is_stopped_when_the_measurement_fails(tmp_path: Path) -> None:
    note = tmp_path / "note"

    def measure() -> None:
        with run_service("unused", [sys.executable, "-c", SERVICE, str(note)]):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        measure()
    assert note.exists()


def test_the_service_is_stopped_when_we_are_told_to_end(tmp_path: Path) -> None:
    note = tmp_path / "note"
    handler = signal.getsignal(signal.SIGTERM)

    with (
        pytest.raises(KeyboardInterrupt),
        run_service("unused", [sys.executable, "-c", SERVICE, str(note)]),
    ):
        os.kill(os.getpid(), signal.SIGTERM)

    assert note.exists()
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_service_that_ends_is_reported_with_its_log() -> None:
    command = [sys.executable, "-c", "import sys; print('port taken'); sys.exit(3)"]

    with (
        pytest.raises(StartupError, match=r"(?s)code 3.*port taken"),
        run_service("unused", command),
    ):
        pass


def test_the_service_gets_no_signals_of_our_terminal(tmp_path: Path) -> None:
    code = "import os; print(f'ready: {os.getsid(0)}', flush=True); import signal; signal.pause()"

    with run_service("unused", [sys.executable, "-c", code]) as session:
        assert int(session) != os.getsid(0)
