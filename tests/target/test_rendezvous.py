import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from specray.config import (
    EngineCoreConfig,
    LogFileConfig,
    ObservabilityConfig,
    TargetPluginConfig,
)
from specray.errors import StartupError
from specray.target import rendezvous
from specray.types import SpeculationPolicy

CONFIG = EngineCoreConfig(
    plugin=TargetPluginConfig(
        max_depth=3,
        policy=SpeculationPolicy(max_wait_ms=7.0),
        trust_draft_distributions=True,
        observability=ObservabilityConfig(traces="file:/spans"),
    ),
    listen_host="10.0.0.7",
    log_file=LogFileConfig(path="/logs/engine.log", is_json=True, level=20),
    instance="r1",
)


@pytest.fixture(autouse=True)
def temp_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def in_engine_core(temp_folder: Path, code: str) -> str:
    """Run code in a child, as vLLM runs its engine core; returns what it prints."""
    program = f"from specray.target import rendezvous\n{code}"
    environment = {"TMPDIR": str(temp_folder), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_parent_and_child_meet(temp_folder: Path) -> None:
    rendezvous.offer(CONFIG)
    code = "rendezvous.publish_address(rendezvous.read().listen_host + ':1234')"
    in_engine_core(temp_folder, code)

    assert rendezvous.take_address() == "10.0.0.7:1234"


def test_the_engine_learns_all_that_it_is_told(temp_folder: Path) -> None:
    rendezvous.offer(CONFIG)

    assert in_engine_core(temp_folder, "print(repr(rendezvous.read()))") == repr(CONFIG)


def test_an_engine_that_nobody_has_told_anything_says_so(temp_folder: Path) -> None:
    with pytest.raises(StartupError, match="specray has started"):
        rendezvous.read()


def test_an_engine_that_publishes_nothing_is_an_error() -> None:
    rendezvous.offer(CONFIG)

    with pytest.raises(StartupError, match="published no stream address"):
        rendezvous.take_address()


def test_an_address_is_taken_once_and_nothing_is_left(temp_folder: Path) -> None:
    rendezvous.offer(CONFIG)
    in_engine_core(temp_folder, "rendezvous.publish_address('127.0.0.1:1')")
    rendezvous.take_address()

    assert not list(rendezvous.folder().iterdir())
    with pytest.raises(StartupError):
        rendezvous.take_address()


def test_an_address_left_by_a_dead_process_of_the_same_pid_is_not_taken(temp_folder: Path) -> None:
    in_engine_core(temp_folder, "rendezvous.publish_address('127.0.0.1:1')")
    rendezvous.offer(CONFIG)

    with pytest.raises(StartupError):
        rendezvous.take_address()


def test_only_the_user_enters_the_folder() -> None:
    assert rendezvous.folder().stat().st_mode & 0o077 == 0
    assert rendezvous.folder() == rendezvous.folder()


def test_a_link_that_somebody_laid_there_is_refused(temp_folder: Path) -> None:
    elsewhere = temp_folder / "elsewhere"
    elsewhere.mkdir()
    folder = rendezvous.folder()
    folder.rmdir()
    folder.symlink_to(elsewhere)

    with pytest.raises(StartupError, match="remove it"):
        rendezvous.folder()
