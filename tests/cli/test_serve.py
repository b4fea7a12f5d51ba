import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from specray.cli import main
from specray.cli.serve import Signals, read_config, service_url, watch
from specray.errors import InvalidConfigError
from specray.serve.local import LocalCluster
from specray.serve.pools import read_pools
from specray.serve.ports import free_port
from specray.serve.settings import AppArgs
from tests.serve.test_settings import save_model


@pytest.fixture
def config() -> dict[str, Any]:
    args = {
        "target": {"model_loading_config": {"model_id": "m", "model_source": "s3://bucket/m"}},
        "draft": {"cpus": [0]},
    }
    return {
        "http_options": {"host": "127.0.0.1", "port": 8123},
        "applications": [
            {"name": "a", "route_prefix": "/", "import_path": "specray:build_app", "args": args}
        ],
    }


def written(folder: Path, config: dict[str, Any]) -> Path:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def test_the_file_says_where_to_listen(tmp_path: Path, config: dict[str, Any]) -> None:
    http = read_config(written(tmp_path, config), None, None).http_options

    assert (http.host, http.port) == ("127.0.0.1", 8123)


def test_the_command_line_overrides_it(tmp_path: Path, config: dict[str, Any]) -> None:
    http = read_config(written(tmp_path, config), "0.0.0.0", 9000).http_options

    assert (http.host, http.port) == ("0.0.0.0", 9000)


@pytest.mark.parametrize(
    ("host", "prefix", "url"),
    [
        ("127.0.0.1", "/", "http://127.0.0.1:8123"),
        ("0.0.0.0", "/llm", "http://127.0.0.1:8123/llm"),
    ],
)
def test_it_is_reached_under_its_prefix(
    tmp_path: Path, config: dict[str, Any], host: str, prefix: str, url: str
) -> None:
    config["applications"][0]["route_prefix"] = prefix
    config["http_options"]["host"] = host

    assert service_url(read_config(written(tmp_path, config), None, None)) == url


def test_the_rest_of_the_file_stays_as_it_is(tmp_path: Path, config: dict[str, Any]) -> None:
    config["http_options"]["keep_alive_timeout_s"] = 77
    read = read_config(written(tmp_path, config), None, 9000)

    assert read.http_options.keep_alive_timeout_s == 77
    assert read.applications[0].args == config["applications"][0]["args"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"applications: [", "config.yaml: while parsing"),
        (b"", "config.yaml: holds no settings"),
        (b"applications: 3", "config.yaml: (.|\n)*applications"),
        (b"- a\n- b", "config.yaml: "),
        (b"\xff\xfe\x00", "config.yaml: .*utf-8"),
    ],
)
def test_a_faulty_file_is_named_with_its_fault(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)

    with pytest.raises(InvalidConfigError, match=message):
        read_config(file, None, None)


def test_a_file_without_applications_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"config\.yaml: applications: has none"):
        read_config(written(tmp_path, {"applications": []}), None, None)


@pytest.mark.parametrize("place", ["missing.yaml", "."])
def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"(No such file|directory)"):
        read_config(tmp_path / place, None, None)


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("draft", {"method": "magic"}, "draft.method: "),
        ("draft", {"cpus": [100_000]}, "draft.cpus: core 100000 is not available here; there are"),
        ("speculation", {"max_depth": -1}, "speculation.max_depth: "),
    ],
)
def test_faulty_arguments_end_it_before_anything_starts(
    tmp_path: Path,
    config: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    section: str,
    value: dict[str, Any],
    message: str,
) -> None:
    config["applications"][0]["args"][section] = value
    config["http_options"]["port"] = free_port()

    code = main(["serve", str(written(tmp_path, config))])

    output = capsys.readouterr()
    assert code == 2
    assert output.err.startswith(f"specray: {message}")
    assert "starting" not in output.out


def test_a_port_that_is_no_port_ends_it_before_anything_starts(
    tmp_path: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["serve", str(written(tmp_path, config)), "--port", "70000"])

    output = capsys.readouterr()
    assert code == 2
    assert "port 70000" in output.err
    assert "starting" not in output.out


def test_a_port_that_is_taken_ends_it_before_anything_starts(
    tmp_path: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as Ray's proxy does
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = main(["serve", str(written(tmp_path, config)), "--port", str(port)])

    output = capsys.readouterr()
    assert code == 2
    assert output.err.startswith(f"specray: port {port} on 127.0.0.1 can't be used")
    assert "--port" in output.err
    assert "starting" not in output.out


def test_warnings_come_before_anything_starts(
    tmp_path: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = config["applications"][0]["args"]
    args["target"]["model_loading_config"]["model_source"] = save_model(tmp_path / "m")
    args["draft"] = {"method": "model", "model": {"model": save_model(tmp_path / "d")}}
    (tmp_path / "d" / "chat_template.jinja").write_text("{{ messages }}")

    code = main(["serve", str(written(tmp_path, config)), "--port", "70000"])

    output = capsys.readouterr()
    assert code == 2
    assert "config.yaml: warning: draft.model.model: chat templates differ" in output.err
    assert "starting" not in output.out


@pytest.fixture
def restored_signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("restored_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_stop(number: signal.Signals) -> None:
    signals = Signals()
    os.kill(os.getpid(), number)

    assert signals.stop.wait(1.0)
    assert not signals.reload.is_set()


@pytest.mark.usefixtures("restored_signals")
def test_one_signal_reloads() -> None:
    signals = Signals()
    os.kill(os.getpid(), signal.SIGHUP)

    assert signals.reload.wait(1.0)
    assert not signals.stop.is_set()


@pytest.mark.usefixtures("restored_signals")
@pytest.mark.parametrize("fault", [InvalidConfigError("no such field"), AttributeError("get")])
def test_a_reload_that_fails_leaves_the_service_running(
    tmp_path: Path, config: dict[str, Any], fault: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    running = read_config(written(tmp_path, config), None, None)
    signals = Signals()
    cluster = StubCluster(fault, signals)
    signals.reload.set()

    watch(cluster, signals, running, lambda: running)

    output = capsys.readouterr()
    assert "not reloaded: " in output.err
    assert str(fault) in output.err
    assert ("in deploy" in output.err) == isinstance(fault, AttributeError)  # where a bug is
    assert output.out.count("reloaded") == 1
    assert cluster.deployed == 2


@pytest.mark.usefixtures("restored_signals")
def test_deployments_are_checked_once_at_the_start_and_once_at_a_reload(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []

    def check(args: AppArgs, overrides: dict[str, Any]) -> object:
        checked.append(overrides)
        return read_pools(args, overrides)

    monkeypatch.setattr("specray.serve.live.read_pools", check)
    config["applications"][0]["deployments"] = [{"name": "draft", "num_replicas": 1}]
    file = written(tmp_path, config)

    assert main(["serve", str(file), "--port", "70000"]) == 2
    assert len(checked) == 1

    running, signals = read_config(file, None, None), Signals()
    cluster = StubCluster(AssertionError(), signals)
    cluster.deployed = 1
    signals.reload.set()
    watch(cluster, signals, running, lambda: running)
    assert (len(checked), cluster.deployed) == (2, 2)


@pytest.mark.usefixtures("restored_signals")
@pytest.mark.parametrize("name", ["router", "target:m", "contoller"])
def test_a_reload_that_would_end_replicas_is_refused(
    tmp_path: Path, config: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running = read_config(written(tmp_path, config), None, None)
    config["applications"][0]["deployments"] = [{"name": name, "user_config": {"max_depth": 1}}]
    changed = read_config(written(tmp_path, config), None, None)
    signals = Signals()
    cluster = StubCluster(AssertionError(), signals)
    signals.reload.set()

    def read() -> ServeDeploySchema:
        signals.stop.set()
        return changed

    watch(cluster, signals, running, read)

    assert "not reloaded: deployments" in (err := capsys.readouterr().err)
    assert name in err
    assert cluster.deployed == 0


@pytest.mark.parametrize(
    ("options", "changes", "field"),
    [
        (["--host", "10.0.0.5"], {}, "http_options.host"),
        (
            [],
            {"router": {"deployment_config": {"autoscaling_config": {"max_replicas": 2}}}},
            "router.deployment_config.autoscaling_config",
        ),
    ],
)
def test_what_direct_streaming_can_not_do_is_refused_before_anything_starts(
    tmp_path: Path,
    config: dict[str, Any],
    options: list[str],
    changes: dict[str, Any],
    field: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_model(tmp_path / "m")
    args = config["applications"][0]["args"]
    args["target"]["model_loading_config"]["model_source"] = str(tmp_path / "m")
    args |= changes
    file = str(written(tmp_path, config))

    code = main(["serve", file, "--port", str(free_port()), "--direct-streaming", *options])

    output = capsys.readouterr()
    assert code != 0
    assert field in output.err
    assert "starting Ray" not in output.out


class StubCluster(LocalCluster):
    """Fails at the first reload, asks for a second, then is stopped."""

    def __init__(self, fault: Exception, signals: Signals) -> None:
        self.deployed = 0
        self._fault = fault
        self._signals = signals

    def deploy(self, config: ServeDeploySchema) -> None:
        self.deployed += 1
        if self.deployed == 1:
            self._signals.reload.set()
            raise self._fault
        self._signals.stop.set()
