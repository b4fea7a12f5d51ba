"""Whether the job that fills the volume of models fetches those that the Serve config names."""

from collections.abc import Iterator
from typing import Any

import yaml

from tests.k8s.checks.pods import Manifest, ray_services


def faults(manifests: list[Manifest]) -> Iterator[str]:
    """Models that would be missing when pods load offline, or that the head does not wait for."""
    needed = {model for service in ray_services(manifests) for model in _models(service)}
    for job in (manifest for manifest in manifests if is_weights_job(manifest)):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        if missing := needed - _named_by(container):
            yield f"Job {job['metadata']['name']} does not fetch {sorted(missing)}"
        for service in ray_services(manifests):
            head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
            awaited = [_named_by(container) for container in head.get("initContainers", [])]
            if _named_by(container) not in awaited:
                yield f"the head does not wait for what Job {job['metadata']['name']} fetches"


def _named_by(container: dict[str, Any]) -> set[str]:
    (models,) = (entry["value"] for entry in container["env"] if entry["name"] == "MODELS")
    return set(models.split())


def is_weights_job(manifest: Manifest) -> bool:
    """Whether it is the job that fetches models, rather than one of the load test's."""
    name: str = manifest["metadata"]["name"]
    return manifest["kind"] == "Job" and name.endswith("-weights")


def _models(service: Manifest) -> Iterator[str]:
    for app in yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]:
        yield app["args"]["target"]["model_loading_config"]["model_source"]
        if model := app["args"].get("draft", {}).get("model"):
            yield model["model"]
