"""Every check."""

from tests.k8s.checks import hardening, operator, schemas, serving, weights, wiring
from tests.k8s.checks.pods import Manifest


def faults(manifests: list[Manifest]) -> list[str]:
    """What is wrong; those of the schemas alone when there are any, for the rest relies on them."""
    if found := list(schemas.faults(manifests)):
        return found
    checks = (operator.faults, wiring.faults, hardening.faults, serving.faults)
    found = [fault for check in checks for fault in check(manifests)]
    return found or list(weights.faults(manifests))
