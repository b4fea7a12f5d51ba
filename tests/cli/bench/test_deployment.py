from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from specray.cli.bench.deployment import Deployment, Service, as_flags
from specray.cli.bench.network import Disaggregated, make_plan, make_systems
from specray.cli.bench.peers import make_search
from specray.cli.bench.peers import make_systems as make_peers
from specray.cli.bench.systems import SpecraySystem
from specray.config import DraftConfig, SpeculationConfig
from specray.errors import InvalidConfigError, StartupError

DEPLOYMENTS = Path(__file__).parents[3] / "deployments"
HYBRID = DEPLOYMENTS / "local-hybrid.yaml"


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setattr("specray.cli.bench.deployment.resolve", lambda source: f"/models/{source}")
    return Deployment(HYBRID)


def test_the_models_and_options_are_the_files(deployment: Deployment) -> None:
    assert deployment.target == "/models/bundled:smollm2-135m-instruct"
    assert deployment.draft == "/models/bundled:smollm2-135m-instruct-draft"
    assert deployment.is_on_cpu
    assert deployment.engine_kwargs["dtype"] == "float32"
    assert deployment.environment["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_settings_are_merged_into_the_file_that_the_service_reads(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {"draft": {"method": "model", "model": {"support": 8}}, "speculation": {"max_depth": 3}}

    @contextmanager
    def reader(command: list[str], _: object) -> Iterator[Path]:
        yield next(Path(word) for word in command if word.endswith(".yaml"))

    monkeypatch.setattr("specray.cli.bench.deployment.running", reader)
    service = Service(deployment, args)
    with service.run() as path:
        started = yaml.safe_load(path.read_text())
        service.write({"simulation": {"rtt_ms": 5.0}})
        after = yaml.safe_load(path.read_text())

    before = yaml.safe_load(HYBRID.read_text())
    assert started["applications"][0]["deployments"] == before["applications"][0]["deployments"]
    assert not path.parent.exists()
    app = after["applications"][0]
    assert app["args"]["draft"]["model"]["support"] == 8
    assert app["args"]["draft"]["model"]["model"] == "bundled:smollm2-135m-instruct-draft"
    assert app["args"]["target"] == before["applications"][0]["args"]["target"]
    assert app["args"]["speculation"] == {
        "listen_host": "127.0.0.1",
        "max_depth": 3,
        "max_wait_ms": 100,
    }
    assert after["http_options"]["port"] != before["http_options"]["port"]
    assert app["deployments"] == [
        *before["applications"][0]["deployments"],
        {"name": "draft", "user_config": {"simulation": {"rtt_ms": 5.0}}},
    ]


def test_every_disaggregated_system_has_settings_that_hold(
    deployment: Deployment, tmp_path: Path
) -> None:
    for system in make_systems(deployment, make_plan(is_quick=True)):
        if isinstance(system, Disaggregated):
            content = deployment.changed(system.args, {"simulation": {}}, 8000)
            args = content["applications"][0]["args"]
            draft = DraftConfig.model_validate(args["draft"])
            assert draft.simulation is not None
            SpeculationConfig.model_validate(args["speculation"])


@pytest.mark.parametrize("has_ngrams", [True, False])
def test_ours_among_the_peers_have_settings_that_hold(
    deployment: Deployment, has_ngrams: bool
) -> None:
    if not has_ngrams:
        del deployment._args["draft"]["ngram"]
    ours = [s for s in make_peers(deployment, (2,)) if isinstance(s, SpecraySystem)]
    for system in ours:
        content = deployment.changed(system.args, None, 8000)
        DraftConfig.model_validate(content["applications"][0]["args"]["draft"])

    assert ("specray-ngram" in {system.name for system in ours}) == has_ngrams


def test_one_of_ours_streams_past_serves_proxy(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def running(command: list[str], _: object) -> None:
        commands.append(command)
        raise StartupError("not started")

    monkeypatch.setattr("specray.cli.bench.deployment.running", running)
    for system in make_peers(deployment, (2,)):
        if isinstance(system, SpecraySystem):
            with pytest.raises(StartupError, match="not started"):
                system.measure((), system.settings[0], make_search(()), 0, print)
            is_direct = system.name == "specray-hybrid-direct"
            assert ("--direct-streaming" in commands[-1]) == is_direct


def test_a_file_without_a_draft_model_has_no_peers_with_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specray.cli.bench.deployment.resolve", lambda source: source)
    with pytest.raises(InvalidConfigError, match=r"no draft\.model\.model"):
        make_peers(Deployment(DEPLOYMENTS / "local.yaml"), (2,))


@pytest.mark.parametrize("text", ["", "applications: []", "a: [", "applications: [{args: {}}]"])
def test_a_file_without_a_target_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InvalidConfigError, match="with a target"):
        Deployment(path)


def test_engine_options_become_words() -> None:
    words = as_flags(
        {
            "max_model_len": 4096,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "x": {"a": 1},
        }
    )

    assert words == [
        *("--max-model-len", "4096"),
        "--enforce-eager",
        "--no-enable-prefix-caching",
        *("--x", '{"a": 1}'),
    ]
