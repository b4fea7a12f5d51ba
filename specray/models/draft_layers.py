"""A draft as only what was trained of it, in int8; the rest is its target's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from specray.models.quantised import dequantise, quantise

DRAFT_FILE = "specray_draft.json"
"""Beside the weights of a draft that `specray distill` made: its head's tokens, its origin."""

_WEIGHTS = "layers.safetensors"
_CUT_FROM = "cut_from"


class DraftLayers(NamedTuple):
    """What makes a draft out of its target."""

    cut_from: tuple[int, ...]  # which of the target's layers each of the draft's began as
    trained: dict[int, dict[str, Tensor]]  # weights by layer of the draft; the others are as cut


def write_layers(layers: DraftLayers, facts: dict[str, Any], folder: Path) -> None:
    """Writes the layers in int8, and the facts."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"{index}.{name}": weight
        for index, layer in layers.trained.items()
        for name, weight in layer.items()
    }
    metadata = {_CUT_FROM: json.dumps(layers.cut_from)}
    save_file(quantise(weights), folder / _WEIGHTS, metadata)
    (folder / DRAFT_FILE).write_text(json.dumps(facts) + "\n", "utf-8")


def holds_layers(folder: Path) -> bool:
    """Whether `write_layers` wrote into this folder."""
    return (folder / _WEIGHTS).is_file()


def read_layers(folder: Path) -> DraftLayers:
    """What `write_layers` wrote, as float32."""
    with safe_open(folder / _WEIGHTS, "pt") as file:
        cut_from = tuple(json.loads(file.metadata()[_CUT_FROM]))
    return DraftLayers(cut_from, by_layer(dequantise(load_file(folder / _WEIGHTS))))


def by_layer(weights: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Weights whose names begin with their layer's number, by layer, in their order."""
    layers: dict[int, dict[str, Tensor]] = {}
    for name, weight in weights.items():
        index, _, rest = name.partition(".")
        layers.setdefault(int(index), {})[rest] = weight
    return dict(sorted(layers.items()))
