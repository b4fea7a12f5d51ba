"""Config files as data, and as Ray reads them."""

import copy
from pathlib import Path
from typing import Any

import yaml
from ray.serve.schema import ServeDeploySchema

LOCAL = Path(__file__).parents[2] / "deployments" / "local.yaml"


def local() -> dict[str, Any]:
    """`deployments/local.yaml`."""
    config: dict[str, Any] = yaml.safe_load(LOCAL.read_text())
    return config


def schema(config: dict[str, Any]) -> ServeDeploySchema:
    return ServeDeploySchema.model_validate(copy.deepcopy(config))
