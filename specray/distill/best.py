"""The layers that were best on held-out answers, and how far the training was by then."""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from specray.distill.work import write_whole


class BestPoint(NamedTuple):
    """Where in a training the best layers are from."""

    held_out_loss: float
    tokens: int  # answer tokens trained on
    seconds: float


def save_best(path: Path, layers: torch.nn.Module, point: BestPoint) -> None:
    """Writes the layers and where they are from, as one file: no kill can part them."""
    state = {name: weight.contiguous() for name, weight in layers.state_dict().items()}
    facts = {name: json.dumps(value) for name, value in point._asdict().items()}
    write_whole(path, lambda partial: save_file(state, partial, facts))


def read_facts(path: Path) -> dict[str, float]:
    """What was noted of the point that the layers in a file are from.

    Returns:
        The fields of `BestPoint`; earlier versions noted fewer, the first ones none.
    """
    with safe_open(path, "pt") as file:
        return {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
