"""How a replica and its engine core's process tell each other what vLLM has no place for.

vLLM starts the engine core as a child, offers a plug-in no way to answer, and hashes
`additional_config` into the key of its compile cache: where the stream server listens would cost a
compilation at every start, how long a step waits one at every change. So parent and child meet at
a file named after the parent's pid in a folder only their user can enter.
"""

import os
import stat
import tempfile
from pathlib import Path

from specray.config import EngineCoreConfig
from specray.errors import StartupError


def folder() -> Path:
    """The meeting place, created on first use.

    Raises:
        StartupError: somebody else owns the folder.
    """
    path = Path(tempfile.gettempdir()) / f"specray-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise StartupError(f"{path} belongs to somebody else; remove it")
    return path


def offer(config: EngineCoreConfig) -> None:
    """In the replica, before the engine starts."""
    _file(os.getpid(), "address").unlink(missing_ok=True)  # of a dead process with our pid
    _write(_file(os.getpid(), "config"), config.model_dump_json())


def read() -> EngineCoreConfig:
    """In the engine core.

    Raises:
        StartupError: the engine was not started by a target of ours.
    """
    path = _file(os.getppid(), "config")
    if not path.exists():
        raise StartupError("specray's scheduler runs only in an engine that specray has started")
    return EngineCoreConfig.model_validate_json(path.read_text())


def publish_address(address: str) -> None:
    """In the engine core, once the server listens."""
    _write(_file(os.getppid(), "address"), address)


def take_address() -> str:
    """In the replica, once the engine has started; leaves no file.

    Raises:
        StartupError: the engine runs without our scheduler, or the scheduler did not come up.
    """
    path = _file(os.getpid(), "address")
    if not path.exists():
        raise StartupError("the target's engine started but published no stream address")
    address = path.read_text()
    path.unlink()
    _file(os.getpid(), "config").unlink(missing_ok=True)
    return address


def _file(replica_pid: int, what: str) -> Path:
    return folder() / f"{replica_pid}.{what}"


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)
