"""The forward pass of Llama-like models in few operations; transformers' is the reference."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from transformers import PreTrainedModel

from specray.draft.addressed_cache import AddressedCache, Attend
from specray.draft.attention import AttentionCache, CachedRow, NewTokens
from specray.draft.batch_cache import BatchCache
from specray.draft.gpu import has_kernels
from specray.draft.in_place_cache import InPlaceCache
from specray.draft.int8_layer import Int8Head, Int8Layer, Int8Layers
from specray.draft.kv_pool import KvLayout
from specray.draft.llama_layer import (
    FloatLayer,
    Layer,
    LayerWeights,
    Norm,
    RmsNorm,
    Rotation,
    Weights,
)


class LlamaPass:
    """Llama, Mistral, Qwen2 or Qwen3 with full attention, taken out of a transformers model."""

    def __init__(
        self,
        model: PreTrainedModel,
        head_token_ids: Tensor | None = None,
        *,
        is_int8: bool = False,
    ) -> None:
        """Takes the model apart, layer by layer, so that no more than one is held twice.

        Args:
            model: one that is Llama-like (`specray.models.llama_like`); it can't be used any more.
            head_token_ids: the tokens that its head is for, if it has been trimmed.
            is_int8: whether to round its weights to int8; on a CPU and with float32 only.
        """
        config = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        self.max_positions: int = config.max_position_embeddings
        kv_heads, dim = config.num_key_value_heads, model.model.layers[0].self_attn.head_dim
        self.layout = KvLayout(config.num_hidden_layers, kv_heads, dim)
        num_heads: int = config.num_attention_heads
        is_fused = has_kernels(self.device, self.dtype, num_heads, kv_heads, dim)
        self.attend: Attend | None = None  # to keys and values where they lie on a GPU
        self.copies_rows = not is_fused and (
            self.device.type != "cpu" or self.dtype != torch.float32
        )
        self.head_token_ids = None if head_token_ids is None else head_token_ids.to(self.device)
        self._rotation = Rotation(model.model.rotary_emb)
        self._embedding = model.model.embed_tokens.weight.detach()
        norm, head = Norm.of(model.model.norm), Weights.of(model.get_output_embeddings())
        self._score: Callable[[Tensor], Tensor]
        make_layer: Callable[[LayerWeights], Layer] = Int8Layer if is_int8 else FloatLayer
        if is_fused:
            from specray.draft.triton_kernels import attend  # Triton, which a CPU lacks
            from specray.draft.triton_layer import TritonLayer, TritonNorm

            self.attend, make_layer = attend, TritonLayer
            self._score = partial(_float_logits, TritonNorm(norm), head)
        else:
            self._score = (
                Int8Head(norm, head) if is_int8 else partial(_float_logits, RmsNorm(norm), head)
            )
        self._layers = [make_layer(_take_layer(model, i)) for i in range(self.layout.num_layers)]
        int8_layers = [layer for layer in self._layers if isinstance(layer, Int8Layer)]
        self._together = Int8Layers(int8_layers, kv_heads) if int8_layers else None

    def make_cache(self, rows: Sequence[CachedRow]) -> AttentionCache:
        """The keys and values of a batch, for the passes of one proposal."""
        if self.attend is not None:
            return AddressedCache.of(rows, self.attend)
        return BatchCache(rows) if self.copies_rows else InPlaceCache(rows)

    @torch.inference_mode()
    def next_logits(self, new: NewTokens, cache: AttentionCache) -> Tensor:
        """See `LanguageModel`."""
        new = cache.start_pass(new)
        turns = self._rotation.at(new.positions)
        x = embedding(new.token_ids, self._embedding)
        if self._together is not None and isinstance(cache, InPlaceCache):
            x = self._together.compute(x, turns, cache)
        else:
            for index, layer in enumerate(self._layers):
                x = layer.finish(x, cache.attend(layer.qkv(x, turns), index))
        return self._score(new.scored(x))


def _float_logits(norm: Callable[[Tensor], Tensor], head: Weights, x: Tensor) -> Tensor:
    """The logits of tokens [tokens, hidden]."""
    return linear(norm(x), *head)


def _take_layer(model: PreTrainedModel, index: int) -> LayerWeights:
    layer = model.model.layers[index]
    attention, mlp = layer.self_attn, layer.mlp
    dim = attention.head_dim
    queries, keys = (
        Weights.of(attention.q_proj).paired(dim),
        Weights.of(attention.k_proj).paired(dim),
    )
    made = LayerWeights(
        Norm.of(layer.input_layernorm),
        Weights.joined(queries, keys, Weights.of(attention.v_proj)),
        Weights.of(attention.o_proj),
        Norm.of(layer.post_attention_layernorm),
        Weights.joined(Weights.of(mlp.gate_proj), Weights.of(mlp.up_proj)),
        Weights.of(mlp.down_proj),
        dim,
        len(queries.weight) // dim + len(keys.weight) // dim,
        _head_norm(attention, len(queries.weight) // dim, len(keys.weight) // dim),
    )
    model.model.layers[index] = nn.Identity()
    return made


def _head_norm(attention: nn.Module, num_queries: int, num_keys: int) -> Norm | None:
    """Of each head of the queries and keys; Qwen3's."""
    if not hasattr(attention, "q_norm"):
        return None
    queries, keys = Norm.of(attention.q_norm).paired(), Norm.of(attention.k_norm).paired()
    weights = (queries.weight.expand(num_queries, -1), keys.weight.expand(num_keys, -1))
    return Norm(torch.cat(weights), queries.epsilon)
