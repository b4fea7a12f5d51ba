from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeDeploySchema

from specray.errors import InvalidConfigError
from specray.serve.changes import Changes, compare, compare_files
from tests.serve.files import LOCAL, local, schema

APP = "applications.specray"
POLICY = {"policy_function": "specray.serve.scaling:scale_pools"}
NOTHING = Changes((), (), ())


@pytest.fixture
def config() -> dict[str, Any]:
    return local()


def with_entry(config: dict[str, Any], name: str, **options: Any) -> ServeDeploySchema:
    config["applications"][0]["deployments"] = [{"name": name, **options}]
    return schema(config)


def is_same_version(before: ServeDeploySchema, after: ServeDeploySchema) -> bool:
    """Whether Serve would keep the application's code, and with it all replicas."""
    versions = [[get_app_code_version(app) for app in c.applications] for c in (before, after)]
    return versions[0] == versions[1]


def test_live_settings_are_named(config: dict[str, Any]) -> None:
    before = with_entry(config, "controller", user_config={"is_enabled": True, "max_depth": 2})
    after = with_entry(config, "controller", user_config={"is_enabled": False, "max_depth": 2})
    place = f"{APP}.deployments.controller.user_config"

    assert compare(before, before) == NOTHING
    assert compare(before, after) == Changes((f"{place}.is_enabled",), (), ())
    config["applications"][0].pop("deployments")
    assert compare(before, schema(config)) == Changes((place,), (), ())


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ({}, {"num_replicas": 2}, "num_replicas"),
        ({}, {"num_replicas": "auto"}, "num_replicas"),
        ({"num_replicas": 1}, {"num_replicas": 2}, "num_replicas"),
        ({}, {"max_ongoing_requests": 2}, "max_ongoing_requests"),
        (
            {"autoscaling_config": {"max_replicas": 3}},
            {"autoscaling_config": {"max_replicas": 4}},
            "autoscaling_config.max_replicas",
        ),
    ],
)
def test_serve_heeds_some_options_in_place(
    config: dict[str, Any], first: dict[str, Any], second: dict[str, Any], place: str
) -> None:
    before, after = with_entry(config, "draft", **first), with_entry(config, "draft", **second)
    expected = Changes((), (f"{APP}.deployments.draft.{place}",), ())

    assert compare(before, after) == compare(after, before) == expected
    assert is_same_version(before, after)


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ({}, {"ray_actor_options": {"num_gpus": 1}}, "ray_actor_options"),
        ({}, {"autoscaling_config": {"max_replicas": 3}}, "autoscaling_config"),
        (
            {"autoscaling_config": {"max_replicas": 3}},
            {"autoscaling_config": {"max_replicas": 3, "policy": POLICY}},
            "autoscaling_config.policy",
        ),
        ({}, {"autoscaling_config": None}, "autoscaling_config"),
    ],
)
def test_serve_replaces_replicas_for_others(
    config: dict[str, Any], first: dict[str, Any], second: dict[str, Any], place: str
) -> None:
    before, after = with_entry(config, "draft", **first), with_entry(config, "draft", **second)

    expected = Changes((), (), (f"{APP}.deployments.draft.{place}",))
    assert compare(before, after) == compare(after, before) == expected


def test_a_number_of_replicas_among_the_args_replaces_them(config: dict[str, Any]) -> None:
    before = schema(config)
    config["applications"][0]["args"]["draft"] |= {"deployment_config": {"num_replicas": 2}}
    after = schema(config)

    changes = compare(before, after)
    assert changes.beyond
    assert not changes.in_place
    assert not is_same_version(before, after)


def test_applications_that_come_or_go_are_no_change_in_place(config: dict[str, Any]) -> None:
    before = schema(config)
    config["applications"].append(config["applications"][0] | {"name": "two", "route_prefix": "/2"})
    both = schema(config)
    config["applications"][0]["name"] = "renamed"

    assert compare(before, both) == compare(both, before) == Changes((), (), ("applications.two",))
    assert compare(both, schema(config)) == Changes((), (), (APP, "applications.renamed"))


def test_an_application_without_a_name_is_compared_too(config: dict[str, Any]) -> None:
    del config["applications"][0]["name"]
    before = schema(config)
    config["applications"][0]["args"]["speculation"]["max_depth"] = 3

    place = "applications.default.args.speculation.max_depth"
    assert compare(before, schema(config)) == Changes((), (), (place,))


def test_whatever_else_changes_is_named(config: dict[str, Any]) -> None:
    before = schema(config)
    config["http_options"]["port"] = 9000
    config["applications"][0]["route_prefix"] = "/v"
    config["applications"][0]["args"]["speculation"]["max_depth"] = 3

    assert compare(before, schema(config)) == Changes(
        (),
        (f"{APP}.route_prefix",),
        ("http_options.port", f"{APP}.args.speculation.max_depth"),
    )


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    assert compare_files(LOCAL, LOCAL) == NOTHING
    with pytest.raises(InvalidConfigError, match=r"none\.yaml"):
        compare_files(tmp_path / "none.yaml", LOCAL)
