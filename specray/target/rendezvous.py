"""How the engine core's process tells its parent, the replica, where its stream server listens.

vLLM starts the engine core as a child and offers a plug-in no way to answer. `additional_config`
goes into the compile cache's key, so a name that changes at every start would cost a compilation:
parent and child meet at a file named after the parent's pid in a folder only their user can enter.
"""

import os
import stat
import tempfile
from pathlib import Path

from specray.config import EngineWatchConfig
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


def offer_host(host: str, watch: EngineWatchConfig | None = None) -> None:
    """In the replica, before the engine starts.

    Args:
        host: the address its stream server may listen on.
        watch: what it is to write down about its requests.
    """
    _file(os.getpid(), "address").unlink(missing_ok=True)  # of a dead process with our pid
    _write(_file(os.getpid(), "host"), host)
    _write(_file(os.getpid(), "watch"), (watch or EngineWatchConfig()).model_dump_json())


def read_host() -> str:
    """In the engine core: the host to listen on; the loopback address if nobody chose."""
    path = _file(os.getppid(), "host")
    return path.read_text() if path.exists() else "127.0.0.1"


def read_watch() -> EngineWatchConfig:
    """In the engine core: what to write down; nothing if nobody asked."""
    path = _file(os.getppid(), "watch")
    if not path.exists():
        return EngineWatchConfig()
    return EngineWatchConfig.model_validate_json(path.read_text())


def publish_address(address: str) -> None:
    """In the engine core, once the server listens."""
    _write(_file(os.getppid(), "address"), address)


def take_address() -> str:
    """In the replica, once the engine has started; clears the files.

    Raises:
        StartupError: the engine runs without our scheduler, or the scheduler did not come up.
    """
    path = _file(os.getpid(), "address")
    if not path.exists():
        raise StartupError("the target's engine started but published no stream address")
    address = path.read_text()
    path.unlink()
    for what in ("host", "watch"):
        _file(os.getpid(), what).unlink(missing_ok=True)
    return address


def _file(replica_pid: int, what: str) -> Path:
    return folder() / f"{replica_pid}.{what}"


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)
