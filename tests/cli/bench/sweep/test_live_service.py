import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from specray.cli.bench import service as bench_service
from specray.cli.bench.sweep.service import LiveService, run_live_service
from specray.errors import StartupError

CONFIG = """
applications:
  - name: a
    import_path: specray:build_app
    args: {speculation: {max_depth: 5}}
    deployments:
      - {name: controller, user_config: {max_depth: 3}}
      - {name: draft, num_replicas: 2}
  - {name: b, import_path: other:app}
"""
SCRIPT = """
import signal, sys, time, yaml
def reload(*_):
    app = yaml.safe_load(open(sys.argv[1]))["applications"][0]
    live = app["deployments"][-1]["user_config"]
    fits = live["depth_policy"].get("depth") != 5
    print("reloaded" if fits else "specray: not reloaded: too deep", flush=True)
signal.signal(signal.SIGHUP, reload)
print("metrics: http://fake/metrics", flush=True)
print("ready: http://fake/v1", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config file; `specray serve` is a script that rereads its copy."""
    config, script = tmp_path / "config.yaml", tmp_path / "serve.py"
    config.write_text(CONFIG)
    script.write_text(SCRIPT)

    class Fake(bench_service.subprocess.Popen):  # type: ignore[type-arg, misc, name-defined]
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__([sys.executable, str(script), command[-1]], **options)

    monkeypatch.setattr(bench_service.subprocess, "Popen", Fake)
    return config


def read(service: LiveService) -> dict[str, Any]:
    return yaml.safe_load(service._path.read_text())  # type: ignore[no-any-return]


def test_a_service_becomes_another_while_it_runs(started: Path) -> None:
    with run_live_service(str(started)) as service:
        assert service.url == "http://fake/v1"
        assert service.metrics_url == "http://fake/metrics"
        service.become("depth 3")
        app, other = read(service)["applications"]

    assert app["args"]["speculation"]["max_depth"] == 8
    assert app["deployments"] == [
        {"name": "draft", "num_replicas": 2},
        {"name": "controller", "user_config": {"depth_policy": {"name": "fixed", "depth": 3}}},
    ]
    assert "deployments" not in other
    assert yaml.safe_load(started.read_text()) == yaml.safe_load(CONFIG)  # the user's own


def test_a_refused_policy_says_why(started: Path) -> None:
    with run_live_service(str(started)) as service:
        service.become("depth 1")
        with pytest.raises(StartupError, match="not become 'depth 5': specray: not reloaded: too"):
            service.become("depth 5")
