from typing import Any

import pytest

from specray.errors import InvalidConfigError
from specray.serve.pools import Pool, read_pools
from specray.serve.settings import validate


@pytest.fixture
def args() -> dict[str, Any]:
    return {
        "target": {
            "model_loading_config": {"model_id": "org/m-1.5"},
            "accelerator_type": "H100",
            "engine_kwargs": {"tensor_parallel_size": 4},
            "deployment_config": {"autoscaling_config": {"min_replicas": 1, "max_replicas": 3}},
        },
        "draft": {
            "deployment_config": {
                "num_replicas": 2,
                "ray_actor_options": {"num_gpus": 0.25, "accelerator_type": "L4"},
            }
        },
    }


def pools(args: dict[str, Any], overrides: dict[str, Any] | None = None) -> dict[str, Pool]:
    return {pool.role: pool for pool in read_pools(validate(args), overrides or {})}


def test_what_each_role_asks_for(args: dict[str, Any]) -> None:
    found = pools(args)

    assert found["target"] == Pool("target:org--m-1_5", "target", 1, 3, 1, 4, "H100")
    assert found["draft"] == Pool("draft", "draft", 2, 2, 0, 0.25, "L4")
    assert found["controller"] == Pool("controller", "controller", 1, 1, 0, 0, None)
    assert (found["router"].cpus, found["router"].gpus) == (0, 0)


def test_a_target_on_the_cpu_has_its_cores_from_its_bundles(args: dict[str, Any]) -> None:
    args["target"] = {
        "model_loading_config": {"model_id": "m"},
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": {"tensor_parallel_size": 2},
        "deployment_config": {"ray_actor_options": {"num_cpus": 0}},
    }

    assert pools(args)["target"] == Pool("target:m", "target", 1, 1, 2, 0, None)


def test_a_target_may_take_a_share_of_a_gpu(args: dict[str, Any]) -> None:
    args["target"]["engine_kwargs"] = {}
    args["target"]["placement_group_config"] = {"bundle_per_worker": {"CPU": 1, "GPU": 0.8}}

    assert pools(args)["target"].gpus == 0.8


def test_further_targets_have_pools_of_their_own(args: dict[str, Any]) -> None:
    args["more_targets"] = [{"model_loading_config": {"model_id": "b"}}]

    names = [pool.name for pool in read_pools(validate(args), {})]
    assert names == ["router", "controller", "target:org--m-1_5", "target:b", "draft"]


def test_without_speculation_there_is_no_draft(args: dict[str, Any]) -> None:
    args["speculation"] = {"max_depth": 0}

    assert "draft" not in pools(args)


def test_what_the_file_s_deployments_say_comes_last(args: dict[str, Any]) -> None:
    found = pools(
        args,
        {
            "draft": {"num_replicas": 5, "ray_actor_options": {"num_gpus": 1}},
            "target:org--m-1_5": {"num_replicas": 2},
            "router": {"autoscaling_config": {"min_replicas": 2, "max_replicas": 4}},
        },
    )

    assert (found["draft"].min_replicas, found["draft"].gpus) == (5, 1)
    assert (found["target"].min_replicas, found["target"].max_replicas) == (2, 2)
    assert (found["router"].min_replicas, found["router"].max_replicas) == (2, 4)


def test_replicas_that_serve_chooses_are_as_many_as_it_would_take(args: dict[str, Any]) -> None:
    """`num_replicas: auto` of an override goes by its own limits, the deployment's or Serve's."""
    found = pools(
        args,
        {
            "draft": {"num_replicas": "auto"},
            "target:org--m-1_5": {"num_replicas": "auto"},
            "router": {"num_replicas": "auto", "autoscaling_config": {"min_replicas": 2}},
        },
    )

    assert (found["draft"].min_replicas, found["draft"].max_replicas) == (1, 100)
    assert (found["target"].min_replicas, found["target"].max_replicas) == (1, 3)
    assert (found["router"].min_replicas, found["router"].max_replicas) == (2, 100)


BOTH = {"num_replicas": 2, "autoscaling_config": {"min_replicas": 1}}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("draft", "deployment_config"), BOTH, r"^draft\.deployment_config: .*num_replicas"),
        (("target", "deployment_config"), BOTH, r"^target\.deployment_config: .*num_replicas"),
        (("draft", "deployment_config"), {"replicas": 2}, r"^draft\.deployment_config: .*replicas"),
        (
            ("router",),
            {"deployment_config": {"max_ongoing_requests": 0}},
            r"^router\.deployment_config: ",
        ),
        (
            ("target", "engine_kwargs"),
            {"max_modle_len": 1},
            r"^target\.engine_kwargs: Unknown engine argument: max_modle_len",
        ),
    ],
)
def test_what_ray_or_vllm_would_refuse_is_named(
    args: dict[str, Any], place: tuple[str, ...], value: Any, message: str
) -> None:
    *folders, name = place
    inner = args
    for folder in folders:
        inner = inner[folder]
    inner[name] = value

    with pytest.raises(InvalidConfigError, match=message):
        pools(args)


def test_an_entry_for_no_deployment_is_named_with_those_there_are(args: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidConfigError, match=r"^deployments: 'Draft' is none of .* router, controller, target:"
    ):
        pools(args, {"Draft": {}})
