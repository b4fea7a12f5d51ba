"""The routed experts of a mixture-of-experts model: of which each token passes through a few."""

from dataclasses import dataclass
from typing import Any

import torch

from specray.models.quantization import Quantization

_COUNT_NAMES = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN_NAMES = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts")
_PLACE = ".experts."  # in their weights' names, which those of shared experts lack


@dataclass(frozen=True, slots=True)
class Experts:
    """Those of all layers together."""

    count: int  # of each layer that has any
    per_token: int
    num_parameters: int
    num_quantized: int  # of them, in fewer bits

    @property
    def num_idle_parameters(self) -> int:
        """Parameters that one token does not pass through."""
        return self.num_parameters * (self.count - self.per_token) // self.count


def is_of_expert(name: str) -> bool:
    """Whether a weight or layer of this name is a routed expert's."""
    return _PLACE in name


def find_experts(model: torch.nn.Module, text: Any, scheme: Quantization | None) -> Experts | None:
    """The experts of a model; None if it has none.

    Where the config does not tell how many there are and how many a token passes through, it is
    taken to pass through all.

    Args:
        model: It, with or without memory.
        text: Its config.
        scheme: How its checkpoint is quantised, if it is.
    """
    weights = {name: weight for name, weight in model.named_parameters() if is_of_expert(name)}
    if not weights:
        return None
    count, per_token = _read(text, _COUNT_NAMES), _read(text, _PER_TOKEN_NAMES)
    if not 0 < per_token <= count:
        count = per_token = 1
    quantized = [
        weight
        for name, weight in weights.items()
        if scheme and not name.endswith("bias") and scheme.applies_to(_layer_of(name))
    ]
    return Experts(
        count,
        per_token,
        num_parameters=sum(weight.numel() for weight in weights.values()),
        num_quantized=sum(weight.numel() for weight in quantized),
    )


def _read(text: Any, names: tuple[str, ...]) -> int:
    """The first that the config has; 0 if it has none, or one for each layer."""
    values = (getattr(text, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), 0)


def _layer_of(weight: str) -> str:
    """The linear layer whose weight it is, as checkpoints name it.

    They, and their lists of what is not quantised, name each expert's layers; transformers keeps
    those of all experts in one, gates and ups together.
    """
    before, _, after = weight.partition(_PLACE)
    if after[0].isdigit():
        return weight.rpartition(".")[0]
    return f"{before}{_PLACE}0.{after.replace('gate_up', 'gate')}"
