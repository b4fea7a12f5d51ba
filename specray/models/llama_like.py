"""Models of Llama's kind, whose layers a draft computes by itself."""

from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)
from transformers.cache_utils import DynamicLayer

_ARCHITECTURES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_ROTATIONS = ("default", "linear", "llama3")  # of those that exist, these don't depend on length


def is_llama_like(model: PreTrainedModel) -> bool:
    """Whether `specray.draft.llama` computes what the model does."""
    return (
        type(model) in _ARCHITECTURES
        and model.config.hidden_act == "silu"
        and model.config.rope_parameters["rope_type"] in _ROTATIONS
        and has_full_attention(model)
    )


def has_full_attention(model: PreTrainedModel) -> bool:
    """Whether every layer attends to all tokens: no sliding window, no linear attention."""
    layers = DynamicCache(config=model.config).layers
    return all(type(layer) is DynamicLayer for layer in layers)
