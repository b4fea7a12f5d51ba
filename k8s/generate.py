"""Writes what the overlays and the chart share: Serve configs and alerts.

A Serve config of the cluster is a file of deployments/ and what its placement adds.

Run it after a change of either (`python k8s/generate.py`); a test tells when that was forgotten.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).parent
CHART = K8S / "helm" / "specray"
DEPLOYMENTS = K8S.parent / "deployments"
OVERLAYS = {"70b": "llama70b", "405b": "llama405b", "cpu-kind": "local"}


def merged(base: Any, patch: Any) -> Any:
    """A merge patch (RFC 7386) that merges lists of named things by name.

    Args:
        base: what is patched; left as it is.
        patch: what replaces its keys; None removes one.
    """
    if _is_named(base) and _is_named(patch):
        return _merged_by_name(base, patch)
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key, {}), value)
    return result


def serve_config(overlay: str) -> str:
    """The text of an overlay's serve.yaml."""
    name = OVERLAYS[overlay]
    source, placement = DEPLOYMENTS / f"{name}.yaml", K8S / "placement" / f"{name}.yaml"
    config = merged(yaml.safe_load(source.read_text()), yaml.safe_load(placement.read_text()))
    head = f"# From deployments/{name}.yaml and k8s/placement/{name}.yaml, by k8s/generate.py.\n"
    return head + yaml.safe_dump(config, sort_keys=False, width=100)


def outputs() -> dict[Path, str]:
    """Each generated file and its text."""
    texts: dict[Path, str] = {}
    for overlay in OVERLAYS:
        text = serve_config(overlay)
        texts[K8S / "overlays" / overlay / "serve.yaml"] = text
        texts[CHART / "serve" / f"{overlay}.yaml"] = text
    alerts = K8S / "components" / "monitoring" / "alerts.yaml"
    texts[CHART / "alerts.yaml"] = alerts.read_text()
    return texts


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, dict) and "name" in v for v in value)


def _merged_by_name(base: list[Any], patch: list[Any]) -> list[Any]:
    patches = {item["name"]: item for item in patch}
    known = [merged(item, patches.pop(item["name"], {})) for item in base]
    return known + list(patches.values())


if __name__ == "__main__":
    for path, text in outputs().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        sys.stdout.write(f"{path.relative_to(K8S.parent)}\n")
