"""Whether each manifest is what its API takes."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.k8s.checks.pods import Manifest

SCHEMAS = Path(__file__).parents[1] / "schemas"

KINDS = {
    ("v1", "ConfigMap"): "io.k8s.api.core.v1.ConfigMap",
    ("v1", "Namespace"): "io.k8s.api.core.v1.Namespace",
    ("v1", "Secret"): "io.k8s.api.core.v1.Secret",
    ("v1", "Service"): "io.k8s.api.core.v1.Service",
    ("v1", "ServiceAccount"): "io.k8s.api.core.v1.ServiceAccount",
    ("v1", "PersistentVolume"): "io.k8s.api.core.v1.PersistentVolume",
    ("v1", "PersistentVolumeClaim"): "io.k8s.api.core.v1.PersistentVolumeClaim",
    ("apps/v1", "StatefulSet"): "io.k8s.api.apps.v1.StatefulSet",
    ("batch/v1", "Job"): "io.k8s.api.batch.v1.Job",
    ("networking.k8s.io/v1", "NetworkPolicy"): "io.k8s.api.networking.v1.NetworkPolicy",
    ("policy/v1", "PodDisruptionBudget"): "io.k8s.api.policy.v1.PodDisruptionBudget",
    ("ray.io/v1", "RayService"): "RayService",
    ("monitoring.coreos.com/v1", "PodMonitor"): "PodMonitor",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "PrometheusRule",
}


@cache
def definitions() -> dict[str, Any]:
    """All schemas, by the name that others refer to."""
    found = dict(json.loads((SCHEMAS / "kubernetes-1.30.json").read_text())["$defs"])
    for path in SCHEMAS.glob("*.yaml"):
        found |= yaml.safe_load(path.read_text())["$defs"]
    return found


@cache
def validator(name: str) -> Draft202012Validator:
    """The validator of one definition."""
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions()})


def faults(manifests: list[Manifest]) -> Iterator[str]:
    """Where a manifest is not what its kind's schema says."""
    for manifest in manifests:
        kind = (manifest.get("apiVersion"), manifest.get("kind"))
        if kind not in KINDS:
            yield f"no kind {kind[1]} in API {kind[0]}"
            continue
        for error in validator(KINDS[kind]).iter_errors(manifest):
            place = ".".join(str(part) for part in error.absolute_path)
            yield f"{kind[1]} {manifest['metadata']['name']}: {place}: {error.message:.300}"
