"""What a model's config.json says about its heads."""

import math
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig

from specray.models.kv_cache import layer_configs, num_kv_heads
from specray.models.unreadable import UNREADABLE


@dataclass(frozen=True, slots=True)
class Heads:
    """The numbers that decide how a model can be split."""

    num_heads: int
    num_kv_heads: int  # where layers differ, what can be split as all of theirs can


def read_heads(model: str) -> Heads | None:
    """The heads of a resolved model; None if the hub can't be reached or it has no such heads."""
    config: Any
    try:
        config = AutoConfig.from_pretrained(model)
    except UNREADABLE:
        return None
    return heads_of(config.get_text_config())


def heads_of(text: Any) -> Heads | None:
    """The heads that a model's config tells of; None if it has no such heads."""
    layers = [*layer_configs(text)]
    if not layers or not all(hasattr(layer, "num_attention_heads") for layer in layers):
        return None
    return Heads(
        math.gcd(*(layer.num_attention_heads for layer in layers)),
        math.gcd(*(num_kv_heads(layer) for layer in layers)),
    )
