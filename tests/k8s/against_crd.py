"""Checks our manifests, and our schema of RayService, against KubeRay's own CRD.

kubectl get crd rayservices.ray.io -o yaml > crd.yaml
python -m tests.k8s.against_crd crd.yaml
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.k8s.checks.pods import ray_services
from tests.k8s.checks.schemas import definitions
from tests.k8s.rendering import OVERLAYS, overlay, preset

Schema = dict[str, Any]


def strict(schema: Schema) -> Schema:
    """The CRD's schema with unknown fields as errors, as the API server checks strictly."""
    strict_schema = {key: _strict_part(key, value) for key, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict_schema.setdefault("additionalProperties", False)
    return strict_schema


def _strict_part(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: strict(part) for name, part in value.items()}
    if key in ("items", "additionalProperties") and isinstance(value, dict):
        return strict(value)
    return value


def unknown_to(crd: Schema, ours: Schema, place: str = "") -> Iterator[str]:
    """Fields that our schema allows and the CRD has not, or of another type."""
    if "$ref" in ours:
        name = ours["$ref"].removeprefix("#/$defs/")
        if not name.startswith("io.k8s."):
            yield from unknown_to(crd, definitions()[name], place)
        return
    if {ours.get("type"), crd.get("type")} >= {"string", "integer"}:
        yield f"{place}: {ours['type']}, the CRD has {crd['type']}"
    for name, part in ours.get("properties", {}).items():
        if name not in crd.get("properties", {}):
            yield f"{place}.{name}: the CRD has no such field"
        else:
            yield from unknown_to(crd["properties"][name], part, f"{place}.{name}")
    if "items" in ours:
        yield from unknown_to(crd["items"], ours["items"], f"{place}[]")


def faults(crd: Schema) -> Iterator[str]:
    """What the CRD says against our schema and our manifests."""
    (version,) = (v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema = version["schema"]["openAPIV3Schema"]
    yield from unknown_to(schema["properties"]["spec"], {"$ref": "#/$defs/RayServiceSpec"})
    validator = Draft202012Validator(strict(schema["properties"]["spec"]))
    for name in OVERLAYS:
        for service in ray_services(overlay(name) + preset(name)):
            for error in validator.iter_errors(service["spec"]):
                place = ".".join(str(part) for part in error.absolute_path)
                yield f"{name}: {place}: {error.message:.300}"


if __name__ == "__main__":
    found = list(faults(yaml.load(Path(sys.argv[1]).read_text(), yaml.CSafeLoader)))
    sys.stdout.write("\n".join([*found, f"{len(found)} faults\n"]))
    sys.exit(bool(found))
