"""What KubeRay 1.7.0 refuses when it reconciles, beyond its schema."""

from collections.abc import Iterator
from typing import Any

from tests.k8s.checks.pods import Group, Manifest, groups, ray_services

_RESOURCE_PARAMS = {"num-cpus", "num-gpus", "memory", "resources"}


def faults(manifests: list[Manifest]) -> Iterator[str]:
    """Where the operator would mark a RayService as invalid."""
    for service in ray_services(manifests):
        cluster = service["spec"]["rayClusterConfig"]
        yield from _upgrade_faults(service["spec"])
        for group in groups(service):
            yield from _group_faults(group)
            yield from _restart_faults(group, cluster)
        names = [group.name for group in groups(service)]
        if len(set(names)) < len(names):
            yield f"two groups have one name: {names}"
        yield from _redis_faults(cluster)


def _upgrade_faults(spec: dict[str, Any]) -> Iterator[str]:
    upgrade = spec.get("upgradeStrategy", {})
    if upgrade.get("type") != "NewClusterWithIncrementalUpgrade":
        return
    if not spec["rayClusterConfig"].get("enableInTreeAutoscaling"):
        yield "an incremental upgrade needs enableInTreeAutoscaling"
    options = upgrade.get("clusterUpgradeOptions", {})
    if options.get("stepSizePercent", 0) > options.get("maxSurgePercent", 100):
        yield "stepSizePercent is larger than maxSurgePercent"


def _group_faults(group: Group) -> Iterator[str]:
    params = group.spec.get("rayStartParams", {})
    if group.spec.get("resources") and _RESOURCE_PARAMS & params.keys():
        yield f"group {group.name}: resources both in rayStartParams and in resources"
    if "labels" in params:
        yield f"group {group.name}: rayStartParams.labels is not supported, use labels"
    if group.spec.get("minReplicas", 0) > group.spec.get("maxReplicas", 0):
        yield f"group {group.name}: minReplicas is larger than maxReplicas"


def _restart_faults(group: Group, cluster: dict[str, Any]) -> Iterator[str]:
    is_v2 = cluster.get("autoscalerOptions", {}).get("version") == "v2"
    policy = group.spec["template"]["spec"].get("restartPolicy", "Never")
    if cluster.get("enableInTreeAutoscaling") and is_v2 and policy != "Never":
        yield f"group {group.name}: with autoscaler v2 restartPolicy must be Never"


def _redis_faults(cluster: dict[str, Any]) -> Iterator[str]:
    head = cluster["headGroupSpec"]
    env = {entry["name"] for entry in head["template"]["spec"]["containers"][0].get("env", [])}
    if "redis-password" in head.get("rayStartParams", {}) or "REDIS_PASSWORD" in env:
        yield "Redis' password belongs into gcsFaultToleranceOptions.redisPassword"
    if "RAY_REDIS_ADDRESS" in env:
        yield "Redis' address belongs into gcsFaultToleranceOptions.redisAddress"
