"""The student: some layers of the target, with its embeddings, norm and head as they are."""

from collections.abc import Sequence
from typing import Any

import torch

from specray.errors import InvalidConfigError


def layers_of(model: Any) -> torch.nn.ModuleList:
    """The decoder layers of a causal LM.

    Raises:
        InvalidConfigError: there are none that could be told.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        for child in module.children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == count:
                return child
    raise InvalidConfigError(f"target: {type(model).__name__} has no list of {count} layers")


def cut(model: Any, layers: Sequence[int]) -> Any:
    """Keeps only these layers of a model, in this order, and returns it.

    Raises:
        InvalidConfigError: a layer that the model does not have, or one that is named twice.
    """
    held = layers_of(model)
    missing = [layer for layer in layers if not 0 <= layer < len(held)]
    if missing or not layers:
        raise InvalidConfigError(f"layers {list(layers)}: the target has 0 to {len(held) - 1}")
    if len(set(layers)) < len(layers):
        raise InvalidConfigError(
            f"layers {list(layers)}: each can be kept once only, as it is trained and saved once; "
            "leave out what is named again"
        )
    kept = [held[layer] for layer in layers]
    del held[:]
    held.extend(kept)
    config = model.config.get_text_config(decoder=True)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    for index, layer in enumerate(kept):
        attention: Any = getattr(layer, "self_attn", None)
        if hasattr(attention, "layer_idx"):
            attention.layer_idx = index
    return model


def detach_prefix(model: Any, length: int) -> list[Any]:
    """Takes the first layers out of a model, and returns them."""
    layers = layers_of(model)
    prefix = list(layers[:length])
    del layers[:length]
    model.config.get_text_config(decoder=True).num_hidden_layers = len(layers)
    return prefix


def attach_prefix(model: Any, prefix: Sequence[Any]) -> None:
    """Puts back what `detach_prefix` took."""
    layers = layers_of(model)
    for index, layer in enumerate(prefix):
        layers.insert(index, layer)
    model.config.get_text_config(decoder=True).num_hidden_layers = len(layers)
