"""What a model's layers keep of the tokens that they have read."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

# Others with a latent have layers in vLLM 0.29 that keep all heads' keys and values (MiniCPM3).
_LATENT_TYPES = ("deepseek_v2", "deepseek_v3")


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that keep the same of a token."""

    num_layers: int
    num_heads: int  # of keys and values; ranks share them until each has one
    width: int  # numbers that a token has in each head, its key's and its value's together
    window: int | None = None  # only the latest so many tokens are read; None: all
    is_latent: bool = False  # of which all heads' keys and values are made


def layer_configs(text: Any) -> Iterator[Any]:
    """The config of each layer; families such as Gemma 4 have layers with other heads."""
    if getattr(text, "is_heterogeneous", False):
        yield from text.per_layer_config
    else:
        yield from [text] * getattr(text, "num_hidden_layers", 0)


def read_kv_layers(model: PreTrainedModel, text: Any) -> tuple[KvLayers, ...] | None:
    """The layers of a model, by what they keep; None if that does not follow from its config.

    Those of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) keep what vLLM keeps: a
    latent, of which all heads' keys and values are made, and a key of positions.

    Args:
        model: It, with or without memory.
        text: Its config.
    """
    num_layers = getattr(text, "num_hidden_layers", 0)
    if not hasattr(text, "num_attention_heads") or getattr(text, "num_kv_shared_layers", None):
        return None
    kinds = getattr(text, "layer_types", None) or [_untold_kind(text)] * num_layers
    if not kinds or len(kinds) != num_layers:
        return None
    if getattr(text, "kv_lora_rank", None):
        is_plain = set(kinds) == {"full_attention"} and text.model_type in _LATENT_TYPES
        width = text.kv_lora_rank + text.qk_rope_head_dim
        return (KvLayers(num_layers, 1, width, is_latent=True),) if is_plain else None
    counts: Counter[KvLayers] = Counter()
    for kind, layer in zip(kinds, layer_configs(text), strict=True):
        window = layer.sliding_window if kind == "sliding_attention" else None
        if kind != "full_attention" and not window:
            return None
        counts[KvLayers(1, *_head(layer), window)] += 1
    found = tuple(replace(layers, num_layers=num) for layers, num in counts.items())
    return found if _is_as_told(model, text) else None


def attention_width(text: Any) -> int:
    """Numbers of a token with which its attention to another one multiplies, halved.

    Half of them for the scores, half for the sum of values: a head's width times the heads. With
    latent attention a query is as wide as what is kept, and so is each head's sum.
    """
    if rank := getattr(text, "kv_lora_rank", None):
        return int(text.num_attention_heads * (2 * rank + text.qk_rope_head_dim) // 2)
    layers = [*layer_configs(text)]
    widths = [layer.num_attention_heads * _head(layer)[1] // 2 for layer in layers]
    return int(sum(widths) // len(widths))


def _untold_kind(text: Any) -> str:
    """Of all layers, where the config has no list: a window is then every layer's (Mistral 7B)."""
    return "sliding_attention" if getattr(text, "sliding_window", None) else "full_attention"


def _head(layer: Any) -> tuple[int, int]:
    """How many a layer has of keys and values, and how wide one is."""
    key = _key_width(layer)
    return num_kv_heads(layer), key + (getattr(layer, "v_head_dim", None) or key)


def num_kv_heads(layer: Any) -> int:
    """How many heads of keys and values a layer has."""
    if getattr(layer, "new_decoder_architecture", False):  # Falcon 40B
        return int(layer.num_kv_heads)
    if getattr(layer, "multi_query", False):  # Falcon 7B, StarCoder
        return 1
    return getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads


def _key_width(layer: Any) -> int:
    return getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads


def _is_as_told(model: PreTrainedModel, text: Any) -> bool:
    """Whether the model's own layers are as wide, where they make keys apart from all else."""
    widths = [
        module.out_features
        for name, module in model.named_modules()
        if name.endswith(".k_proj") and isinstance(module, torch.nn.Linear)
    ]
    told = sum(num_kv_heads(layer) * _key_width(layer) for layer in layer_configs(text))
    return not widths or sum(widths) == told
