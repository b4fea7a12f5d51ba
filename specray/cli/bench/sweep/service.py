"""A service whose depth policy is changed while it runs, as an operator would."""

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from specray.cli.bench.service import Running, find_ready_url, running, serve_command
from specray.cli.bench.sweep.plan import DEFAULT_NUM_SEQS, MAX_DEPTH, OURS, live_settings
from specray.errors import InvalidConfigError, StartupError
from specray.serve.config_file import BUILDER, load

_RELOADED = "reloaded"
_RELOAD_TIMEOUT_S = 30.0
_POLL_S = 0.1
_METRICS = "metrics: "
# Ray's own setting: by default counters reach the endpoint only every ten seconds.
_ENVIRONMENT = {"RAY_metrics_report_interval_ms": "1000"}


class LiveService:
    """The service, and the config file that it rereads."""

    def __init__(self, child: Running, path: Path, content: dict[str, Any]) -> None:
        self.url = child.url
        self.metrics_url = child.said(_METRICS)
        self._child = child
        self._path = path
        self._content = content

    def become(self, system: str) -> None:
        """Change the live policy; it reaches the targets within seconds.

        Raises:
            StartupError: the service did not take it.
        """
        _become(self._content, system)
        _write(self._path, self._content)
        before = self._child.lines().count(_RELOADED)
        self._child.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + _RELOAD_TIMEOUT_S
        while self._child.lines().count(_RELOADED) == before:
            refused = [line for line in self._child.lines() if "not reloaded" in line]
            if refused or time.monotonic() > deadline:
                reason = refused[-1] if refused else f"no answer in {_RELOAD_TIMEOUT_S:g} s"
                raise StartupError(f"the service did not become {system!r}: {reason}")
            time.sleep(_POLL_S)


@contextmanager
def run_live_service(config: str) -> Iterator[LiveService]:
    """Starts the file's service with room for every depth of a sweep, and stops it at the end.

    Raises:
        InvalidConfigError: the file can't be read, or has no application of ours.
        StartupError: the service does not come up.
    """
    content = _read(config)
    for app in _ours(content):
        speculation = app.setdefault("args", {}).setdefault("speculation", {})
        speculation["max_depth"] = max(MAX_DEPTH, speculation.get("max_depth") or 0)
    _become(content, OURS)
    with tempfile.TemporaryDirectory(prefix="specray-sweep-") as folder:
        path = Path(folder) / "sweep.yaml"
        _write(path, content)
        with running(serve_command(str(path)), find_ready_url, _ENVIRONMENT) as child:
            yield LiveService(child, path, content)


def _read(config: str) -> dict[str, Any]:
    try:
        content = load(Path(config).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidConfigError(f"--config: {config}: {error}") from None
    if not isinstance(content, dict) or not _ours(content):
        raise InvalidConfigError(
            f"--config: {config}: has no application whose import_path is {BUILDER}"
        )
    return content


def _ours(content: dict[str, Any]) -> list[dict[str, Any]]:
    apps = content.get("applications") or ()
    return [app for app in apps if isinstance(app, dict) and app.get("import_path") == BUILDER]


def _become(content: dict[str, Any], system: str) -> None:
    for app in _ours(content):
        options = app["args"].get("target", {}).get("engine_kwargs") or {}
        settings = live_settings(system, options.get("max_num_seqs") or DEFAULT_NUM_SEQS)
        others = [entry for entry in app.get("deployments") or () if entry["name"] != "controller"]
        app["deployments"] = [*others, {"name": "controller", "user_config": settings}]


def _write(path: Path, content: dict[str, Any]) -> None:
    """In one piece: the service may be reading."""
    partial = path.with_suffix(".partial")
    partial.write_text(yaml.safe_dump(content), encoding="utf-8")
    partial.replace(path)
