"""What a model's config.json says about its size."""

from typing import Any, NamedTuple

from transformers import AutoConfig


class ModelShape(NamedTuple):
    """The numbers that decide how a model can be split."""

    num_heads: int
    num_kv_heads: int


def read_shape(model: str) -> ModelShape | None:
    """The shape of a resolved model; None if the hub can't be reached or it has no such heads."""
    config: Any
    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError):
        return None
    text = config.get_text_config()
    num_heads = getattr(text, "num_attention_heads", None)
    if num_heads is None:
        return None
    return ModelShape(num_heads, getattr(text, "num_key_value_heads", None) or num_heads)
