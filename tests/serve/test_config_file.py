from pathlib import Path
from typing import Any

import pytest
import yaml

from specray.errors import InvalidConfigError
from specray.serve.config_file import read_file


@pytest.fixture
def config() -> dict[str, Any]:
    application = {
        "name": "a",
        "route_prefix": "/",
        "import_path": "specray:build_app",
        "args": {"anything": {"goes": 1}},
        "runtime_env": {"env_vars": {"ANY": "1"}},
        "deployments": [
            {
                "name": "draft",
                "ray_actor_options": {"num_gpus": 1, "resources": {"mine": 1}},
                "autoscaling_config": {"min_replicas": 1},
                "user_config": {"any": 1},
            }
        ],
    }
    return {"http_options": {"port": 8123}, "applications": [application]}


def written(folder: Path, config: Any) -> Path:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.mark.parametrize("written_as", ["specray:build_ap", "specrai:build_app"])
def test_a_misspelt_builder_is_not_somebody_elses(
    tmp_path: Path, config: dict[str, Any], written_as: str
) -> None:
    config["applications"][0]["import_path"] = written_as

    with pytest.raises(
        InvalidConfigError, match=r"a\.import_path: .*do you mean specray:build_app"
    ):
        read_file(written(tmp_path, config))


def test_a_port_beyond_the_last_is_named(tmp_path: Path, config: dict[str, Any]) -> None:
    config["http_options"]["port"] = 99999

    with pytest.raises(InvalidConfigError, match=r"http_options\.port: 99999 is no port"):
        read_file(written(tmp_path, config))


def test_what_ray_passes_through_may_hold_anything(tmp_path: Path, config: dict[str, Any]) -> None:
    read = read_file(written(tmp_path, config))

    assert read.applications[0].args == {"anything": {"goes": 1}}
    assert read.http_options.port == 8123


@pytest.mark.parametrize(
    ("place", "key", "message"),
    [
        ((), "proxy_locations", r"yaml: proxy_locations: .*do you mean proxy_location\?"),
        ((), "speculation", r"yaml: speculation: .*it has applications, .*target_capacity"),
        (("http_options",), "prot", r"http_options\.prot: .*do you mean port\?"),
        (("applications", 0), "route_prefx", r"applications\[0\]\.route_prefx: .*route_prefix"),
        (("applications", 0, "deployments", 0), "usr_config", r"deployments\[0\]\.usr_config: "),
        (
            ("applications", 0, "deployments", 0, "ray_actor_options"),
            "num_gpu",
            r"deployments\[0\]\.ray_actor_options\.num_gpu: .*num_gpus",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config"),
            "min_replica",
            r"autoscaling_config\.min_replica: .*min_replicas",
        ),
    ],
)
def test_a_key_that_ray_would_ignore_is_named(
    tmp_path: Path, config: dict[str, Any], place: tuple[Any, ...], key: str, message: str
) -> None:
    inner = config
    for part in place:
        inner = inner[part]
    inner[key] = 1

    with pytest.raises(InvalidConfigError, match=message):
        read_file(written(tmp_path, config))


def test_all_of_them_are_named(tmp_path: Path, config: dict[str, Any]) -> None:
    config["applications"][0]["one"] = config["two"] = 1

    with pytest.raises(InvalidConfigError, match=r"(?s)applications\[0\]\.one: .*two: "):
        read_file(written(tmp_path, config))


@pytest.mark.parametrize(("first", "second"), [("port", "port"), ("port", '"port"'), ("1", "1")])
def test_a_key_that_is_there_twice_is_named_with_its_lines(
    tmp_path: Path, first: str, second: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"http_options:\n  {first}: 1\n  host: a\n  {second}: 2\napplications: []\n")

    with pytest.raises(InvalidConfigError, match=rf"(?s){first} is set here.*line 2.*line 4"):
        read_file(file)


def test_a_key_that_is_no_scalar_is_refused_too(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("? [a]\n: 1\napplications: []\n")

    with pytest.raises(InvalidConfigError, match="unhashable"):
        read_file(file)


def test_what_an_anchor_says_may_be_overridden(tmp_path: Path, config: dict[str, Any]) -> None:
    config["applications"][0]["args"] = "ARGS"
    text = yaml.safe_dump(config).replace(
        "ARGS", "{a: &a {x: 1}, b: &b {<<: *a, x: 2}, c: {<<: *b, <<: *a, x: 3}}"
    )
    file = tmp_path / "config.yaml"
    file.write_text(text)

    args = read_file(file).applications[0].args
    assert args == {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}
