"""The routed experts of a mixture-of-experts model: of which each token passes through a few."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from specray.models.quantization import Quantization

logger = logging.getLogger(__name__)

_COUNT_NAMES = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN_NAMES = (
    *("num_experts_per_tok", "num_experts_per_token"),
    *("moe_topk", "moe_k", "top_k_experts"),
)
_MIXTRAL = {"gate_proj": "w1", "down_proj": "w2"}
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
    count, per_token = read_largest(text, *_COUNT_NAMES), read_largest(text, *_PER_TOKEN_NAMES)
    if not 0 < per_token <= count:
        logger.warning(
            "the config of %s does not tell how many of its experts a token passes through",
            getattr(text, "model_type", "a model"),
        )
        count = per_token = 1
    quantized = [
        weight
        for name, weight in weights.items()
        if scheme and not name.endswith("bias") and all(map(scheme.applies_to, _layers_of(name)))
    ]
    return Experts(
        count,
        per_token,
        num_parameters=sum(weight.numel() for weight in weights.values()),
        num_quantized=sum(weight.numel() for weight in quantized),
    )


def read_largest(text: Any, *names: str) -> int:
    """The first of these that a config has, the largest where it has one for each layer; or 0."""
    for name in names:
        value = getattr(text, name, None)
        numbers = value if isinstance(value, list | tuple) else [value]
        if numbers and all(isinstance(number, int) for number in numbers):
            return max(numbers)
    return 0


def _layers_of(weight: str) -> Iterator[str]:
    """The linear layer whose weight it is, by the names that checkpoints give it.

    They, and their lists of what is not quantised, name each expert's layers, Mixtral's in a way of
    its own; transformers keeps those of all experts in one, gates and ups together.
    """
    before, _, after = weight.partition(_PLACE)
    if after[0].isdigit():
        yield weight.rpartition(".")[0]
        return
    layer = after.replace("gate_up", "gate")
    yield f"{before}{_PLACE}0.{layer}"
    yield f"{before.replace('.mlp', '.block_sparse_moe')}{_PLACE}0.{_MIXTRAL.get(layer, layer)}"
