"""The forward pass of Llama-like models in few operations; transformers' is the reference.

A small draft spends as long between its matrix products as in them, so here queries, keys and
values come from one product, gate and up from another, and all heads turn in one operation.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM, MistralForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from specray.draft.attention import AttentionCache, CachedRow, NewTokens
from specray.draft.batch_cache import BatchCache
from specray.draft.causal_lm import has_full_attention
from specray.draft.in_place_cache import InPlaceCache
from specray.draft.kv_pool import KvLayout

Linear = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor, Tensor | None], Linear]  # from a weight [out, in] and a bias [out]

_ARCHITECTURES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)
_ROTATIONS = ("default", "linear", "llama3")  # of those that exist, these don't depend on length


def float_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer as it is."""
    return partial(functional.linear, weight=weight, bias=bias)


class LlamaPass:
    """Llama, Mistral or Qwen2 with full attention, taken out of a transformers model."""

    def __init__(
        self,
        model: PreTrainedModel,
        head_token_ids: Tensor | None = None,
        make_linear: MakeLinear = float_linear,
    ) -> None:
        """Takes the model apart, layer by layer, so that no more than one is held twice.

        Args:
            model: one that `fits`; it can't be used any more.
            head_token_ids: the tokens that its head is for, if it has been trimmed.
            make_linear: builds the matrix products.
        """
        config = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        self.max_positions: int = config.max_position_embeddings
        kv_heads, dim = config.num_key_value_heads, model.model.layers[0].self_attn.head_dim
        self.layout = KvLayout(config.num_hidden_layers, kv_heads, dim)
        self.copies_rows = self.device.type != "cpu" or self.dtype != torch.float32
        self.head_token_ids = None if head_token_ids is None else head_token_ids.to(self.device)
        self._rotation = _Rotation(model.model.rotary_emb)
        self._embedding = model.model.embed_tokens.weight.detach()
        self._norm = _RmsNorm(model.model.norm)
        head = model.get_output_embeddings()
        self._head = make_linear(head.weight.detach(), head.bias)
        self._layers = [_take_layer(model, i, make_linear) for i in range(self.layout.num_layers)]

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether this pass computes what the model does."""
        return (
            type(model) in _ARCHITECTURES
            and model.config.hidden_act == "silu"
            and model.config.rope_parameters["rope_type"] in _ROTATIONS
            and has_full_attention(model)
        )

    def make_cache(self, rows: Sequence[CachedRow]) -> AttentionCache:
        """The keys and values of a batch, for the passes of one proposal."""
        return BatchCache(rows) if self.copies_rows else InPlaceCache(rows)

    @torch.inference_mode()
    def next_logits(self, new: NewTokens, cache: AttentionCache) -> Tensor:
        """Logits of the token after each row's last one; see `LanguageModel`."""
        new = cache.start_pass(new)
        turns = self._rotation.at(new.positions)
        x = functional.embedding(new.token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(layer.attention_norm(x)).unflatten(1, (-1, self.layout.head_dim))
            self._rotation.turn(qkv[:, : -self.layout.num_heads], turns)  # all but the values
            x = x + layer.out(cache.attend(qkv, index))
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=1)
            x = x + layer.down(functional.silu(gate).mul_(up))
        return self._head(self._norm(new.last(x)))


class _Layer(NamedTuple):
    attention_norm: "_RmsNorm"
    qkv: Linear
    out: Linear
    mlp_norm: "_RmsNorm"
    gate_up: Linear
    down: Linear


class _RmsNorm:
    """x / sqrt(mean(x²) + eps) * weight, computed in float32."""

    def __init__(self, norm: nn.Module) -> None:
        weight = norm.weight.detach().float()
        self._weight = weight * len(weight) ** 0.5
        self._floor = weight.new_tensor((len(weight) * norm.variance_epsilon) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x / size.hypot_(self._floor)).mul(self._weight).to(x.dtype)


class _Rotation:
    """Rotary positions. The two numbers that turn together lie side by side: `_paired`."""

    def __init__(self, rotary: nn.Module) -> None:
        self._frequencies = rotary.inv_freq.float()
        self._scale = torch.full_like(self._frequencies, rotary.attention_scaling)

    def at(self, positions: Tensor) -> Tensor:
        """The turns at `positions` [tokens], complex [tokens, 1, dim / 2]."""
        angles = positions[:, None, None] * self._frequencies
        return torch.polar(self._scale.expand_as(angles), angles)

    @staticmethod
    def turn(heads: Tensor, turns: Tensor) -> None:
        """Turns heads [tokens, heads, dim] in place."""
        pairs = torch.view_as_complex(heads.float().unflatten(2, (-1, 2)))
        pairs.mul_(turns)
        if heads.dtype != torch.float32:
            heads.copy_(torch.view_as_real(pairs).flatten(2))


class _Weights(NamedTuple):
    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]


def _take_layer(model: PreTrainedModel, index: int, make_linear: MakeLinear) -> _Layer:
    layer = model.model.layers[index]
    attention, mlp = layer.self_attn, layer.mlp
    queries = _paired(_weights(attention.q_proj), attention.head_dim)
    keys = _paired(_weights(attention.k_proj), attention.head_dim)
    made = _Layer(
        _RmsNorm(layer.input_layernorm),
        make_linear(*_joined(queries, keys, _weights(attention.v_proj))),
        make_linear(*_weights(attention.o_proj)),
        _RmsNorm(layer.post_attention_layernorm),
        make_linear(*_joined(_weights(mlp.gate_proj), _weights(mlp.up_proj))),
        make_linear(*_weights(mlp.down_proj)),
    )
    model.model.layers[index] = nn.Identity()
    return made


def _weights(linear: nn.Linear) -> _Weights:
    bias = None if linear.bias is None else linear.bias.detach()
    return _Weights(linear.weight.detach(), bias)


def _joined(*parts: _Weights) -> _Weights:
    """One product for several."""
    weight = torch.cat([part.weight for part in parts])
    if all(part.bias is None for part in parts):
        return _Weights(weight, None)
    biases = [
        part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias
        for part in parts
    ]
    return _Weights(weight, torch.cat(biases))


def _paired(part: _Weights, dim: int) -> _Weights:
    """Puts output i + dim / 2 of each head next to output i, with which it turns.

    Queries and keys are reordered alike, so their products stay.
    """
    order = torch.arange(len(part.weight)).view(-1, 2, dim // 2).transpose(1, 2).flatten()
    return _Weights(part.weight[order], None if part.bias is None else part.bias[order])
