"""How much memory a model's weights and its KV cache take, from its config.json alone."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specray.models.experts import Experts, find_experts, is_of_expert, read_largest
from specray.models.heads import Heads, heads_of
from specray.models.known import KNOWN
from specray.models.kv_cache import KvLayers, attention_width, read_kv_layers
from specray.models.llama_like import is_llama_like
from specray.models.quantization import Quantization, read_quantization
from specray.models.sources import BUNDLED_PREFIX, find_local
from specray.models.unreadable import UNMAKEABLE, UNREADABLE

_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "int8": 1}
_BYTES |= {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def is_known_dtype(dtype: str) -> bool:
    """Whether the size of one value of this type is known here; `auto` is the checkpoint's."""
    return dtype == "auto" or dtype in _BYTES


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model's numbers, and where they come from."""

    source: str  # `config.json`, or `built-in table`
    dtype: str  # of what is not quantised
    num_parameters: int
    num_quantized: int  # of them, in fewer bits
    quantized_bits: float
    num_layers: int
    heads: Heads
    kv_layers: tuple[KvLayers, ...]
    attention_width: int  # numbers of a token that its attention to another one multiplies, halved
    hidden_size: int
    ffn_size: int  # of the widest layer; of a mixture's, that of a token's experts together
    vocab_size: int
    max_positions: int
    quantized_dtype: str | None = None  # of products with quantised weights; None: they are widened
    quantization: str | None = None  # its method, as the checkpoint or vLLM's option names it
    experts: Experts | None = None  # a mixture's; among the parameters above
    is_llama_like: bool = False  # so that a draft reads its keys and values where they lie

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token passes through."""
        return self.num_parameters - (self.experts.num_idle_parameters if self.experts else 0)

    @property
    def has_plain_attention(self) -> bool:
        """Whether each layer keeps all tokens' keys and values, as a draft's has to."""
        return all(layers.window is None and not layers.is_latent for layers in self.kv_layers)

    def weight_bytes(self, dtype: str = "auto") -> int:
        """Bytes of all weights; `auto` is the checkpoint's type."""
        return self._weight_bytes(self.num_parameters, self.num_quantized, dtype)

    def expert_bytes(self, dtype: str = "auto") -> int:
        """Bytes of them that are routed experts'."""
        if self.experts is None:
            return 0
        return self._weight_bytes(self.experts.num_parameters, self.experts.num_quantized, dtype)

    def kv_bytes_per_token(self, dtype: str = "auto", num_ranks: int = 1) -> int:
        """Bytes of one token's keys and values in all layers, on one of `num_ranks` GPUs.

        A KV head is not divided: with more ranks than heads, several hold the same.
        """
        return sum(self.kv_bytes(layers, dtype, num_ranks) for layers in self.kv_layers)

    def kv_bytes(self, layers: KvLayers, dtype: str = "auto", num_ranks: int = 1) -> int:
        """Those in some of the layers."""
        heads = max(1, layers.num_heads // num_ranks)
        return layers.num_layers * heads * layers.width * self._bytes(dtype)

    def compute_dtype(self, dtype: str = "auto") -> str:
        """In which most products are computed, by a device that can; `auto` as above."""
        if self.quantized_dtype and self.num_quantized > self.num_parameters / 2:
            return self.quantized_dtype
        return self.dtype if dtype == "auto" else dtype

    def _weight_bytes(self, num_parameters: int, num_quantized: int, dtype: str) -> int:
        plain = (num_parameters - num_quantized) * self._bytes(dtype)
        return plain + round(num_quantized * self.quantized_bits / 8)

    def _bytes(self, dtype: str) -> int:
        return _BYTES[self.dtype if dtype == "auto" else dtype]


def read_size(model: str, quantization: str | None = None) -> ModelSize | None:
    """The size of a model, without making or downloading it.

    Args:
        model: a folder, hub id or `bundled:NAME`.
        quantization: vLLM's option of that name: what a plain checkpoint is turned into.

    Returns:
        None if it has no config.json that can be read from here and is not in our table, or if
        its weights or its KV cache are not of a kind whose size follows from the config.
    """
    config, source = _read_config(model)
    if config is None:
        return None
    given = getattr(config, "quantization_config", None)
    if given is None and quantization is not None:
        given = {"quant_method": quantization}
    scheme = read_quantization(given) if given else Quantization(0.0, ())
    text = config.get_text_config()
    if scheme is None or text is not config:  # what sees pictures is no part of a step
        return None
    made = _make(config)
    size = made and _measure(made, text, source, scheme if given else None)
    if size is None:
        return None
    return replace(size, quantization=given["quant_method"]) if given else size


def _read_config(model: str) -> tuple[Any, str]:
    """The config and where it is from; what needs the network is tried last."""
    folder = find_local(model)
    if folder is None and model in KNOWN:
        return AutoConfig.for_model(**KNOWN[model]), "built-in table"
    if folder is None and model.startswith(BUNDLED_PREFIX):
        return None, ""
    try:
        return AutoConfig.from_pretrained(folder or model), "config.json"
    except UNREADABLE:
        return None, ""


def _make(config: Any) -> PreTrainedModel | None:
    """The model without its memory; None if it can't be, or transformers' code for it fails."""
    try:
        with torch.device("meta"):
            made: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except UNMAKEABLE:
        return None
    return made


def _measure(model: Any, text: Any, source: str, scheme: Quantization | None) -> ModelSize | None:
    heads, kv_layers = heads_of(text), read_kv_layers(model, text)
    max_positions = getattr(text, "max_position_embeddings", None)
    if heads is None or kv_layers is None or max_positions is None:
        return None
    experts = find_experts(model, text, scheme)
    linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    quantized = [
        m
        for name, m in linear.items()
        if scheme and not is_of_expert(name) and scheme.applies_to(name)
    ]
    num_quantized = sum(module.weight.numel() for module in quantized)
    return ModelSize(
        source=source,
        dtype=str(getattr(text, "dtype", None) or "bfloat16").removeprefix("torch."),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_quantized=num_quantized + (experts.num_quantized if experts else 0),
        quantized_bits=scheme.bits if scheme else 0.0,
        num_layers=text.num_hidden_layers,
        heads=heads,
        kv_layers=kv_layers,
        attention_width=attention_width(text),
        hidden_size=text.hidden_size,
        ffn_size=_ffn_size(text, experts),
        vocab_size=text.vocab_size,
        max_positions=max_positions,
        quantized_dtype=scheme.compute_dtype if scheme else None,
        experts=experts,
        is_llama_like=is_llama_like(model),
    )


def _ffn_size(text: Any, experts: Experts | None) -> int:
    size: int | None = getattr(text, "intermediate_size", None)
    if size is None:
        size = getattr(text, "ffn_dim", 0)
    if experts is None:
        return size
    return max(size, experts.per_token * (read_largest(text, "moe_intermediate_size") or size))
