"""The manifests as the real kustomize and the real Helm make them."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
CHART = K8S / "helm" / "specray"
BIN = Path(sys.executable).parent  # pip puts the programs of .ci/requirements-dev.txt there
OVERLAYS = ("70b", "405b", "cpu-kind")


def kustomize(folder: Path) -> list[Manifest]:
    """What `kubectl kustomize FOLDER` prints."""
    return _documents(run("kubectl", "kustomize", str(folder)))


def helm(*options: str, release: str = "specray") -> list[Manifest]:
    """What `helm template RELEASE k8s/helm/specray -n specray OPTIONS` prints."""
    return _documents(run("helm", "template", release, str(CHART), "-n", "specray", *options))


@cache
def overlay_text(name: str) -> str:
    """An overlay, built once for all tests."""
    return run("kubectl", "kustomize", str(K8S / "overlays" / name))


def overlay(name: str) -> list[Manifest]:
    """An overlay's manifests, to change at will."""
    return _documents(overlay_text(name))


def preset(name: str) -> list[Manifest]:
    """The chart's manifests with the values of that size."""
    values = CHART / f"values-{name}.yaml"
    return helm(*(["-f", str(values)] if values.exists() else []))


@contextmanager
def temporary(resources: list[str], components: list[str]) -> Iterator[Path]:
    """A kustomization in a folder of k8s/ that goes afterwards; kustomize reads no other tree."""
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
        "components": components,
    }
    with tempfile.TemporaryDirectory(dir=K8S, prefix=".test-") as folder:
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(content))
        yield Path(folder)


def run(program: str, *arguments: str) -> str:
    """Its output.

    Raises:
        RuntimeError: with what it printed, if it failed.
    """
    path = shutil.which(program, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        raise RuntimeError(f"{program} is not installed; run `make setup`")
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def _documents(text: str) -> list[Manifest]:
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
