"""The comparison with KubeRay's CRD notices what differs; the CRD here is a small one of ours."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.k8s.against_crd import faults, strict, unknown_to
from tests.k8s.checks.schemas import definitions

OURS = definitions()["UpgradeStrategy"]


def _crd(**options: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in options.items()}
    return {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "clusterUpgradeOptions": {"type": "object", "properties": properties},
        },
    }


SAME = {
    "gatewayClassName": "string",
    "intervalSeconds": "integer",
    "stepSizePercent": "integer",
    "maxSurgePercent": "integer",
}


def test_a_schema_that_the_crd_covers_is_sound() -> None:
    assert list(unknown_to(_crd(**SAME), OURS)) == []


def test_a_field_that_the_crd_lacks_is_named() -> None:
    crd = _crd(**{name: kind for name, kind in SAME.items() if name != "maxSurgePercent"})
    (fault,) = unknown_to(crd, OURS)
    assert ".clusterUpgradeOptions.maxSurgePercent: the CRD has no such field" in fault


def test_another_type_is_named() -> None:
    (fault,) = unknown_to(_crd(**SAME | {"intervalSeconds": "string"}), OURS)
    assert "intervalSeconds: integer, the CRD has string" in fault


@pytest.mark.parametrize(
    ("value", "is_sound"),
    [
        ({"type": "None"}, True),
        ({"typ": "None"}, False),
        ({"clusterUpgradeOptions": {"a": 1}}, False),
    ],
)
def test_unknown_fields_are_errors_at_every_depth(value: dict[str, Any], is_sound: bool) -> None:
    assert Draft202012Validator(strict(_crd(**SAME))).is_valid(value) == is_sound


def test_our_manifests_are_checked_too() -> None:
    spec = {"type": "object", "properties": {"serveConfigV2": {"type": "string"}}}
    version = {"name": "v1", "schema": {"openAPIV3Schema": {"properties": {"spec": spec}}}}
    found = list(faults({"spec": {"versions": [version]}}))
    assert any(fault.startswith("cpu-kind: ") and "rayClusterConfig" in fault for fault in found)
