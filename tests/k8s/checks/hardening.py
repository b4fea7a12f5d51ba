"""Whether pods keep to Kubernetes' restricted profile, and say what they need."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.checks.pods import Manifest, Pod, pods, ray_services

_MAY_USE_THE_API = {"head"}


def faults(manifests: list[Manifest]) -> Iterator[str]:
    """Rights that no pod needs, and limits, probes or pins that are missing."""
    for pod in pods(manifests):
        yield from _pod_faults(pod)
        for container in (*pod.init_containers, *pod.containers):
            where = f"{pod.owner}, {container['name']}"
            yield from _right_faults(where, container.get("securityContext", {}))
            yield from _limit_faults(where, container)
        for container in pod.containers:
            if pod.is_ray or "ports" in container:
                yield from _probe_faults(f"{pod.owner}, {container['name']}", container)
    for service in ray_services(manifests):
        options = service["spec"]["rayClusterConfig"].get("autoscalerOptions")
        if options is not None:
            yield from _right_faults("autoscaler", options.get("securityContext", {}))


def _pod_faults(pod: Pod) -> Iterator[str]:
    context = pod.spec.get("securityContext", {})
    if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) == 0:
        yield f"{pod.owner}: may run as root"
    for sharing in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(sharing):
            yield f"{pod.owner}: {sharing}"
    if any("hostPath" in volume for volume in pod.spec.get("volumes", [])):
        yield f"{pod.owner}: hostPath"
    has_token = pod.spec.get("automountServiceAccountToken", True)
    if has_token and pod.labels["app.kubernetes.io/component"] not in _MAY_USE_THE_API:
        yield f"{pod.owner}: gets a token of the Kubernetes API"


def _right_faults(where: str, context: Mapping[str, Any]) -> Iterator[str]:
    if context.get("privileged"):
        yield f"{where}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: allowPrivilegeEscalation is not false"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{where}: does not drop all capabilities"
    if context.get("runAsNonRoot") is not True:
        yield f"{where}: runAsNonRoot is not true"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield f"{where}: no seccomp profile"


def _limit_faults(where: str, container: Mapping[str, Any]) -> Iterator[str]:
    resources = container.get("resources", {})
    for name in ("cpu", "memory"):
        for kind in ("requests", "limits"):
            if name not in resources.get(kind, {}):
                yield f"{where}: no {kind}.{name}"
    gpus = [resources.get(kind, {}).get("nvidia.com/gpu") for kind in ("requests", "limits")]
    if gpus[0] != gpus[1]:
        yield f"{where}: nvidia.com/gpu is {gpus[0]} in requests and {gpus[1]} in limits"
    _, colon, tag = container["image"].rpartition(":")
    if not colon or tag == "latest" or "/" in tag:
        yield f"{where}: image {container['image']} is not pinned"


def _probe_faults(where: str, container: Mapping[str, Any]) -> Iterator[str]:
    for probe in ("livenessProbe", "readinessProbe"):
        if probe not in container:
            yield f"{where}: no {probe}"
