"""The images are pinned to the versions that the project is built on, and run without rights."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.k8s.rendering import K8S, ROOT, overlay

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = sorted((K8S / "docker").glob("Dockerfile.?pu"))


def _ray_version() -> str:
    (pin,) = (pin for pin in PROJECT["optional-dependencies"]["vllm"] if pin.startswith("ray["))
    return str(pin.partition("==")[2])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_base_is_pinned_and_the_user_is_the_manifests_one(file: Path) -> None:
    text = file.read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    users = re.findall(r"^USER (\S+)", text, re.MULTILINE)

    assert bases
    assert all(re.search(r":\d+\.\d+[\w.-]*$", base) for base in bases)
    assert users[-1] == "1000:100"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_it_imports_of_ours_is_there(file: Path) -> None:
    text = file.read_text()
    modules = re.findall(r"(?:import|,) (specray\.[\w.]+)", text)
    names = re.findall(r"from (specray\.[\w.]+) import (\w+)", text)

    assert modules or names
    for module, name in [*((module, "__name__") for module in modules), *names]:
        assert hasattr(import_module(module), name)


def test_the_gpu_image_carries_the_ray_of_the_project() -> None:
    text = (K8S / "docker" / "Dockerfile.gpu").read_text()
    assert f"FROM rayproject/ray-llm:{_ray_version()}-" in text


def test_the_cpu_image_carries_the_torch_of_the_project() -> None:
    (pin,) = (pin for pin in PROJECT["dependencies"] if pin.startswith("torch=="))
    assert f"{pin}+cpu" in (K8S / "docker" / "Dockerfile.cpu").read_text()


def test_what_the_images_copy_is_sent_to_the_builder() -> None:
    for file in FILES:
        ignored = file.with_name(f"{file.name}.dockerignore").read_text()
        sent = {line.removeprefix("!") for line in ignored.splitlines()}
        for copied in re.findall(r"^COPY (?:--\S+ )?(.+) \S+$", file.read_text(), re.MULTILINE):
            assert set(copied.split()) <= sent
            assert all((ROOT / name).exists() for name in copied.split())


@pytest.mark.parametrize("name", ["70b", "405b", "cpu-kind"])
def test_the_cluster_starts_the_ray_of_the_project(name: str) -> None:
    (service,) = (m for m in overlay(name) if m["kind"] == "RayService")
    assert service["spec"]["rayClusterConfig"]["rayVersion"] == _ray_version()
