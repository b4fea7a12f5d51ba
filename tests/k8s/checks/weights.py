"""Whether the job that fills the volume of models fetches those that the Serve config names."""

from collections.abc import Iterator

import yaml

from tests.k8s.checks.pods import Manifest, ray_services


def faults(manifests: list[Manifest]) -> Iterator[str]:
    """Models that would be missing when pods load offline."""
    needed = {model for service in ray_services(manifests) for model in _models(service)}
    for job in (manifest for manifest in manifests if is_weights_job(manifest)):
        env = job["spec"]["template"]["spec"]["containers"][0]["env"]
        fetched = next(entry["value"] for entry in env if entry["name"] == "MODELS").split()
        if missing := needed - set(fetched):
            yield f"Job {job['metadata']['name']} does not fetch {sorted(missing)}"


def is_weights_job(manifest: Manifest) -> bool:
    """Whether it is the job that fetches models, rather than one of the load test's."""
    name: str = manifest["metadata"]["name"]
    return manifest["kind"] == "Job" and name.endswith("-weights")


def _models(service: Manifest) -> Iterator[str]:
    for app in yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]:
        yield app["args"]["target"]["model_loading_config"]["model_source"]
        if model := app["args"].get("draft", {}).get("model"):
            yield model["model"]
