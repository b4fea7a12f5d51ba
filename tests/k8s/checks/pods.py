"""What the checks ask manifests: which pods will there be, and who selects them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Manifest = dict[str, Any]


class Pod(NamedTuple):
    """A pod template, with the labels that its pods get."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    is_ray: bool

    @property
    def containers(self) -> list[dict[str, Any]]:
        """Its containers; with Ray, the first is Ray's."""
        return list(self.spec["containers"])

    @property
    def init_containers(self) -> list[dict[str, Any]]:
        """What has to end before they start."""
        return list(self.spec.get("initContainers", []))


class Group(NamedTuple):
    """A head or worker group of a RayService."""

    name: str
    spec: Mapping[str, Any]


def ray_services(manifests: list[Manifest]) -> list[Manifest]:
    """The RayServices among them."""
    return [manifest for manifest in manifests if manifest.get("kind") == "RayService"]


def groups(service: Manifest) -> Iterator[Group]:
    """Head first."""
    cluster = service["spec"]["rayClusterConfig"]
    yield Group("head", cluster["headGroupSpec"])
    for group in cluster.get("workerGroupSpecs", []):
        yield Group(group["groupName"], group)


def pods(manifests: list[Manifest]) -> Iterator[Pod]:
    """All pod templates."""
    for manifest in manifests:
        owner = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] == "RayService":
            for group in groups(manifest):
                yield _ray_pod(owner, group)
        elif manifest["kind"] in ("StatefulSet", "Job"):
            template = manifest["spec"]["template"]
            yield Pod(owner, template["metadata"]["labels"], template["spec"], is_ray=False)


def _ray_pod(owner: str, group: Group) -> Pod:
    template = group.spec["template"]
    given_by_kuberay = {
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": "head" if group.name == "head" else "worker",
        "ray.io/group": "headgroup" if group.name == "head" else group.name,
    }
    labels = given_by_kuberay | template.get("metadata", {}).get("labels", {})
    return Pod(f"{owner}, {group.name}", labels, template["spec"], is_ray=True)


def selected(selector: Mapping[str, Any], candidates: list[Pod]) -> list[Pod]:
    """The pods that a label selector takes; an empty one takes all."""
    return [pod for pod in candidates if _matches(selector, pod.labels)]


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_fits(rule, labels) for rule in selector.get("matchExpressions", []))


def _fits(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(rule["key"])
    match rule["operator"]:
        case "In":
            return value in rule["values"]
        case "NotIn":
            return value not in rule["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ValueError(f"no such operator: {rule['operator']}")
