"""Serve configs and alerts have one source each."""

from typing import Any

import pytest
import yaml

from k8s.generate import K8S, merged, outputs, serve_config


@pytest.mark.parametrize("path", outputs(), ids=lambda path: str(path.relative_to(K8S)))
def test_a_generated_file_is_up_to_date(path: Any) -> None:
    assert path.read_text() == outputs()[path], "run `python k8s/generate.py`"


def test_pools_of_the_70b_follow_the_load() -> None:
    (app,) = yaml.safe_load(serve_config("70b"))["applications"]

    assert app["autoscaling_policy"] == {"policy_function": "specray.serve.scaling:scale_pools"}
    assert "autoscaling_config" in app["args"]["draft"]["deployment_config"]


def test_null_removes_a_key_and_the_rest_stays() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": [1, 2]}
    assert merged(base, {"a": {"b": None, "e": 3}}) == {"a": {"c": 2, "e": 3}, "d": [1, 2]}


def test_lists_of_named_things_are_merged_by_name_and_others_replaced() -> None:
    base = {"apps": [{"name": "x", "n": 1}, {"name": "y"}], "ports": [1]}
    patch = {"apps": [{"name": "x", "m": 2}, {"name": "z"}], "ports": [2]}
    assert merged(base, patch) == {
        "apps": [{"name": "x", "n": 1, "m": 2}, {"name": "y"}, {"name": "z"}],
        "ports": [2],
    }


def test_what_is_merged_stays_as_it_was() -> None:
    base = {"a": {"b": 1}}
    merged(base, {"a": {"b": 2}})
    assert base == {"a": {"b": 1}}
