"""What a model's config.json says about its heads."""

from typing import Any, NamedTuple

from transformers import AutoConfig


class Heads(NamedTuple):
    """The numbers that decide how a model can be split."""

    num_heads: int
    num_kv_heads: int


def read_heads(model: str) -> Heads | None:
    """The heads of a resolved model; None if the hub can't be reached or it has no such heads."""
    config: Any
    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError):
        return None
    text = config.get_text_config()
    num_heads = getattr(text, "num_attention_heads", None)
    if num_heads is None:
        return None
    return Heads(num_heads, getattr(text, "num_key_value_heads", None) or num_heads)
