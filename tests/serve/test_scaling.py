"""Serve's own wrapper around the policy, as Serve's controller calls it."""

import time
from typing import Any

import cloudpickle
import pytest
from ray.serve._private.common import DeploymentID, TimeStampedValue
from ray.serve.autoscaling_policy import _apply_app_level_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from specray.serve.scaling import scale_pools, wish

POLICY = "specray.serve.scaling:scale_pools"


def context(name: str, replicas: int, **changes: Any) -> AutoscalingContext:
    settings = {"min_replicas": 0, "max_replicas": 9, "upscale_delay_s": 0, "downscale_delay_s": 0}
    usual: dict[str, Any] = {
        "deployment_id": DeploymentID(name=name, app_name="specray"),
        "deployment_name": name,
        "app_name": "specray",
        "current_num_replicas": replicas,
        "target_num_replicas": replicas,
        "running_replicas": [],
        "total_num_requests": 0.0,
        "total_queued_requests": 0.0,
        "aggregated_metrics": {},
        "raw_metrics": {},
        "capacity_adjusted_min_replicas": 0,
        "capacity_adjusted_max_replicas": 9,
        "policy_state": {},
        "last_scale_up_time": None,
        "last_scale_down_time": None,
        "current_time": time.time(),
        "config": AutoscalingConfig(**settings),
    }
    return AutoscalingContext(**usual | changes)


def wishes(*replicas: dict[str, tuple[float, float]]) -> dict[str, dict[str, list[Any]]]:
    """Raw metrics of the controller's replicas: per wish a time and a number."""
    metrics: dict[str, dict[str, list[Any]]] = {"running_requests": {"any": []}}
    for i, wished in enumerate(replicas):
        for name, (at, number) in wished.items():
            series = [TimeStampedValue(at - 1, 99.0), TimeStampedValue(at, number)]
            metrics.setdefault(wish(name), {})[str(i)] = series
    return metrics


def decided(*contexts: AutoscalingContext) -> dict[str, int]:
    policy = _apply_app_level_autoscaling_config(scale_pools)
    numbers, _ = policy({c.deployment_id: c for c in contexts})
    return {deployment.name: number for deployment, number in numbers.items()}


def test_pools_follow_the_controllers_wishes() -> None:
    controller = context(
        "controller", 1, raw_metrics=wishes({"draft": (5.0, 3.0), "target:a": (5.0, 1.0)})
    )

    numbers = decided(controller, context("draft", 1), context("target:a", 2))
    assert numbers == {"controller": 1, "draft": 3, "target:a": 1}


def test_without_a_controller_every_pool_stays_as_it_is() -> None:
    for metrics in ({}, None):
        controller = context("controller", 1, raw_metrics=metrics)
        pools = (context("draft", 3), context("target:a", 2, total_num_requests=500.0))

        assert decided(controller, *pools) == {"controller": 1, "draft": 3, "target:a": 2}
        assert decided(*pools) == {"draft": 3, "target:a": 2}


def test_of_two_controllers_the_later_one_counts() -> None:
    metrics = wishes({"draft": (5.0, 3.0)}, {"draft": (9.0, 2.0)})
    controller = context("controller", 1, raw_metrics=metrics)

    assert decided(controller, context("draft", 1))["draft"] == 2


def test_a_pool_that_sleeps_is_woken_by_a_wish_or_by_requests() -> None:
    controller = context("controller", 1, raw_metrics=wishes({"draft": (5.0, 1.0)}))
    target = context("target:a", 0, total_num_requests=1.0)

    assert decided(controller, context("draft", 0), target) == {
        "controller": 1,
        "draft": 1,
        "target:a": 1,
    }


@pytest.mark.parametrize(("requests", "expected"), [(0.0, 1), (8.0, 4)])
def test_routers_are_scaled_as_serve_does_without_us(requests: float, expected: int) -> None:
    assert decided(context("router", 2, total_num_requests=requests))["router"] == expected


def test_serve_ships_it_without_specray() -> None:
    policy = AutoscalingPolicy(policy_function=POLICY)
    shipped = policy.get_serialized_policy_def()

    assert cloudpickle.loads(shipped)({}) == ({}, {})
    for module in ("specray.serve.app", "specray.control", "specray.config", "torch", "vllm"):
        assert module.encode() not in shipped
