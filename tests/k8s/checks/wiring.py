"""Whether what manifests name exists: pods, ports, secrets, accounts, volumes."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.checks.pods import Manifest, Pod, pods, selected

_EXAMPLES = Path(__file__).parents[3] / "k8s" / "secrets.example.yaml"


def faults(manifests: list[Manifest]) -> Iterator[str]:
    """Names that nothing answers to."""
    templates = list(pods(manifests))
    for manifest in manifests:
        owner = f"{manifest['kind']} {manifest['metadata']['name']}"
        for selector in _selectors(manifest.get("spec", {}), manifest["kind"]):
            if not selected(selector, templates):
                yield f"{owner} selects nobody: {selector}"
    yield from _port_faults(manifests, templates)
    yield from _secret_faults(manifests)
    for pod in templates:
        yield from _account_faults(pod, manifests)
        yield from _volume_faults(pod, manifests)


def _selectors(node: Any, kind: str) -> Iterator[Mapping[str, Any]]:
    """Every pod selector; those for other namespaces choose pods that we don't know."""
    if isinstance(node, dict):
        if kind == "Service" and "selector" in node:
            yield {"matchLabels": node["selector"]}
            return
        if "namespaceSelector" in node:
            return
        for key, value in node.items():
            if key in ("selector", "podSelector", "labelSelector") and isinstance(value, dict):
                yield value
            else:
                yield from _selectors(value, kind)
    elif isinstance(node, list):
        for item in node:
            yield from _selectors(item, kind)


def _port_faults(manifests: list[Manifest], templates: list[Pod]) -> Iterator[str]:
    for manifest in manifests:
        owner, spec = f"{manifest['kind']} {manifest['metadata']['name']}", manifest.get("spec", {})
        if manifest["kind"] == "PodMonitor":
            names = [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
            chosen = selected(spec["selector"], templates)
        elif manifest["kind"] == "Service":
            names = [port["targetPort"] for port in spec["ports"]]
            chosen = selected({"matchLabels": spec["selector"]}, templates)
        else:
            continue
        for pod in chosen:
            known = {port["name"] for container in pod.containers for port in container["ports"]}
            yield from (f"{owner}: {pod.owner} has no port {n}" for n in names if n not in known)
    for pod in templates:
        yield from _probe_faults(pod)


def _probe_faults(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        known = {port["name"] for port in container.get("ports", [])}
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            action = container.get(probe, {})
            port = (action.get("httpGet") or action.get("tcpSocket") or {}).get("port", 1)
            if isinstance(port, str) and port not in known:
                yield f"{pod.owner}: {probe} names port {port}, which {container['name']} has not"


@cache
def known_secrets() -> frozenset[tuple[str, str]]:
    """Name and key of each Secret that the documentation tells to make."""
    documents = yaml.safe_load_all(_EXAMPLES.read_text())
    return frozenset((d["metadata"]["name"], key) for d in documents for key in d["stringData"])


def _secret_faults(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("secretKeyRef"), dict):
            name, key = reference.get("name"), reference.get("key")
            if (name, key) not in known_secrets():
                yield f"no Secret {name} with key {key} in k8s/secrets.example.yaml"
        for value in node.values():
            yield from _secret_faults(value)
    elif isinstance(node, list):
        for item in node:
            yield from _secret_faults(item)


def _account_faults(pod: Pod, manifests: list[Manifest]) -> Iterator[str]:
    accounts = {m["metadata"]["name"] for m in manifests if m["kind"] == "ServiceAccount"}
    name = pod.spec.get("serviceAccountName", "default")
    if name not in accounts:
        yield f"{pod.owner}: no ServiceAccount {name}"


def _volume_faults(pod: Pod, manifests: list[Manifest]) -> Iterator[str]:
    claims = {m["metadata"]["name"] for m in manifests if m["kind"] == "PersistentVolumeClaim"}
    for volume in pod.spec.get("volumes", []):
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim is not None and claim not in claims:
            yield f"{pod.owner}: no PersistentVolumeClaim {claim}"
