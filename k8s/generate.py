"""Writes what is shared: Serve configs, rules and the dashboard, the load test's files.

A Serve config of the cluster is a file of deployments/ and what its placement adds.
prometheus/rules.yaml holds the rules as Prometheus reads them, grafana/panels.yaml the panels.

Run it after a change of either (`python k8s/generate.py`); a test tells when that was forgotten.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))  # when it is imported, as when it is run
from grafana.layout import dashboard

K8S = Path(__file__).parent
MONITORING = K8S / "components" / "monitoring"
CHART = K8S / "helm" / "specray"
DEPLOYMENTS = K8S.parent / "deployments"
LOADTEST = K8S.parent / "loadtest"
PROMPTS = K8S.parent / "specray" / "cli" / "bench" / "prompts"
OVERLAYS = {"70b": "llama70b-autoscaling", "405b": "llama405b", "cpu-kind": "local"}


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
    for folder in (MONITORING, CHART):
        texts[folder / "rules.yaml"] = prometheus_rule()
        texts[folder / "dashboard.json"] = grafana_dashboard()
    return texts | load_test()


def load_test() -> dict[Path, str]:
    """The load test's files, as a ConfigMap can hold them: kustomize reads no other folder."""
    sources = [LOADTEST / "locustfile.py", *sorted((LOADTEST / "load").glob("[a-z]*.py"))]
    texts = {K8S / "loadtest" / "files" / source.name: source.read_text() for source in sources}
    prompts = "".join(file.read_text() for file in sorted(PROMPTS.glob("*.jsonl")))
    return texts | {K8S / "loadtest" / "files" / "prompts.jsonl": prompts}


def prometheus_rule() -> str:
    """The text of rules.yaml: the rules in the form of the Prometheus operator."""
    rules = yaml.safe_load((K8S / "prometheus" / "rules.yaml").read_text())
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "specray", "labels": {"release": "prometheus"}},
        "spec": rules,
    }
    head = "# From k8s/prometheus/rules.yaml, by k8s/generate.py.\n"
    return head + yaml.safe_dump(manifest, sort_keys=False, width=100)


def grafana_dashboard() -> str:
    """The text of dashboard.json."""
    return dashboard(yaml.safe_load((K8S / "grafana" / "panels.yaml").read_text()))


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
