"""Whether the Serve config is what Ray and specray take, and fits on the cluster's nodes."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _generate_available_node_types_from_ray_cr_spec as node_types_of,
)
from ray.serve.schema import DeploymentSchema, ServeDeploySchema

from specray.config import LivePolicyConfig
from specray.serve.settings import AppArgs
from tests.k8s.checks.pods import Manifest, groups, ray_services

_GPU = "nvidia.com/gpu"


class Demand(NamedTuple):
    """What one replica of a deployment needs on one node, and how many there may be."""

    pool: str
    resources: Mapping[str, float]
    num_replicas: int


def faults(manifests: list[Manifest]) -> Iterator[str]:
    """What Ray or specray would refuse, and replicas that no node, or the wrong one, would take."""
    for service in ray_services(manifests):
        yield from _resource_faults(service)
        try:
            config = ServeDeploySchema.model_validate(
                yaml.safe_load(service["spec"]["serveConfigV2"])
            )
            arguments = [AppArgs.model_validate(app.args) for app in config.applications]
        except (ValidationError, yaml.YAMLError) as error:
            yield f"serveConfigV2: {error}"
            continue
        yield from _address_faults(config, arguments)
        for app, args in zip(config.applications, arguments, strict=True):
            try:
                demands = list(_demands(app.deployments, args))
            except ValueError as error:  # pydantic's are among them
                yield f"serveConfigV2: {error}"
                continue
            yield from _placement_faults(service, demands)


def _address_faults(config: ServeDeploySchema, arguments: list[AppArgs]) -> Iterator[str]:
    if config.http_options.host != "0.0.0.0":
        yield "serveConfigV2: http_options.host is no pod's address"
    for args in arguments:
        if args.speculation.listen_host != "auto":
            yield "serveConfigV2: speculation.listen_host: streams of other pods can't reach it"


def _resource_faults(service: Manifest) -> Iterator[str]:
    """Where Ray counts on more, or fewer GPUs, than the container has."""
    for group in groups(service):
        container = group.spec["template"]["spec"]["containers"][0]
        limits = container.get("resources", {}).get("limits", {})
        announced, params = group.spec.get("resources", {}), group.spec.get("rayStartParams", {})
        gpus = announced.get("GPU", params.get("num-gpus", "0"))
        if gpus != limits.get(_GPU, "0"):
            yield f"group {group.name}: Ray has {gpus} GPUs, the container {limits.get(_GPU, '0')}"
        cpus = announced.get("CPU", params.get("num-cpus"))
        if cpus is None or float(cpus) > float(limits.get("cpu", 0)):
            yield f"group {group.name}: Ray has {cpus} CPUs, the container {limits.get('cpu')}"


def _demands(deployments: list[DeploymentSchema], args: AppArgs) -> Iterator[Demand]:
    """What the replicas ask Ray for; a target's tensor-parallel ranks share a node."""
    options = {
        "draft": args.draft.deployment_config,
        "router": args.router.deployment_config,
        "controller": {},
    }
    for name, given in options.items():
        DeploymentSchema.model_validate({"name": name} | given)
    for deployment in deployments:
        if deployment.name not in options:
            raise ValueError(f"no deployment {deployment.name}; there are {', '.join(options)}")
        options[deployment.name] |= deployment.model_dump(exclude_unset=True)
    LivePolicyConfig.model_validate(options["controller"].get("user_config") or {})
    yield Demand("target", _target(args), _num_replicas(args.target.deployment_config))
    for name, given in options.items():
        pool = "router" if name == "controller" else name
        yield Demand(pool, _actor(given.get("ray_actor_options", {})), _num_replicas(given))


def _target(args: AppArgs) -> dict[str, float]:
    total: dict[str, float] = {}
    for bundle in args.target.get_engine_config().placement_bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0) + amount
    options = args.target.deployment_config.get("ray_actor_options", {})
    return total | {"CPU": total.get("CPU", 0) + options.get("num_cpus", 1)}


def _actor(options: Mapping[str, Any]) -> dict[str, float]:
    named = {"CPU": options.get("num_cpus", 0), "GPU": options.get("num_gpus", 0)}
    return named | options.get("resources", {})


def _num_replicas(options: Mapping[str, Any]) -> int:
    """At most, while a change replaces them."""
    scaling = options.get("autoscaling_config") or {}
    most = int(scaling.get("max_replicas") or options.get("num_replicas") or 1)
    return most + math.ceil(most * options.get("max_surge_percent", 0) / 100)


def _placement_faults(service: Manifest, demands: list[Demand]) -> Iterator[str]:
    """Judged by the resources that Ray's own autoscaler reads from the groups."""
    nodes = node_types_of(service["spec"]["rayClusterConfig"])
    left = {name: dict.fromkeys(node["resources"], 0.0) for name, node in nodes.items()}
    for name, node in nodes.items():
        for resource, amount in node["resources"].items():
            left[name][resource] = amount * max(1, node["max_workers"])
    for demand in demands:
        needed = {name: amount for name, amount in demand.resources.items() if amount > 0}
        takers = [name for name, node in nodes.items() if _fits(needed, node["resources"])]
        if takers != [demand.pool]:
            yield f"a {demand.pool} replica needs {needed}; groups that can take it: {takers}"
            continue
        for resource, amount in needed.items():
            left[demand.pool][resource] -= amount * demand.num_replicas
            if left[demand.pool][resource] < -1e-9:
                yield f"group {demand.pool}: too little {resource} in maxReplicas for all"


def _fits(needed: Mapping[str, float], offered: Mapping[str, float]) -> bool:
    return all(offered.get(name, 0) >= amount for name, amount in needed.items())
