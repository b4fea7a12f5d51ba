"""A random Llama with a tokenizer of single characters: steps of a few ms, exact probabilities."""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

CHARS = " " + string.ascii_letters + string.digits + string.punctuation
EOS = 0
VOCAB_SIZE = 1 + len(CHARS)  # 96, not a multiple of the 64 that vLLM pads to
_SPREAD = 0.2  # of the weights: far from flat, far from peaked, and all of the context matters
_MIXTURE_SPREAD = 0.4  # as each token's experts add little to it
_HEAD_SPREAD = 0.25
_EAGLE_NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")


def save(folder: Path) -> None:
    """Writes model and tokenizer as `save_pretrained` does."""
    torch.manual_seed(0)
    _save(LlamaForCausalLM(_config()), folder, _SPREAD)


def save_mixture(folder: Path) -> None:
    """Writes one whose layers have eight experts, of which each token passes through two."""
    config = Qwen3MoeConfig(
        **_shape(), moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2
    )
    torch.manual_seed(0)
    _save(Qwen3MoeForCausalLM(config), folder, _MIXTURE_SPREAD)


def save_windowed(folder: Path) -> None:
    """Writes one of whose two layers one reads the latest 6 tokens only."""
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(
        **_shape(), sliding_window=6, layer_types=kinds, query_pre_attn_scalar=4
    )
    torch.manual_seed(0)
    model = Gemma3ForCausalLM(config)
    _spread(model, _SPREAD)
    with torch.no_grad():  # it multiplies embeddings by 8, and norms what its layers add to them
        model.model.embed_tokens.weight /= 24
    _write(model, folder)


def _save(model: PreTrainedModel, folder: Path, layer_spread: float) -> None:
    _spread(model, layer_spread)
    _write(model, folder)


def _spread(model: PreTrainedModel, layer_spread: float) -> None:
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            spread = _HEAD_SPREAD if name == "lm_head.weight" else layer_spread
            torch.nn.init.normal_(weight, std=1.0 if "embed" in name else spread)


def _write(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def save_eagle3(folder: Path, num_positions: int = 1024) -> None:
    """Writes an EAGLE-3 head for the model as its authors publish theirs, but of random weights."""
    folder.mkdir()
    config = _config().to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCAB_SIZE,
        "max_position_embeddings": num_positions,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    width, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "fc": (width, 2 * width),
        "lm_head": (VOCAB_SIZE, width),
        "midlayer.self_attn.q_proj": (heads, 2 * width),
        "midlayer.self_attn.k_proj": (kv_heads, 2 * width),
        "midlayer.self_attn.v_proj": (kv_heads, 2 * width),
        "midlayer.self_attn.o_proj": (width, heads),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
    }
    norms = ("norm", *(f"midlayer.{n}" for n in _EAGLE_NORMS))
    generator = torch.Generator().manual_seed(1)
    weights = {n: _SPREAD * torch.randn(s, generator=generator) for n, s in shapes.items()}
    weights |= {name: torch.ones(width) for name in norms}
    weights = {f"{name}.weight": weight for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class TinyModel:
    """The same model in transformers, as the reference."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logits(self, prefixes: Sequence[Sequence[int]]) -> NDArray[np.float64]:  # [rows, vocab]
        """Logits after each prefix; all prefixes must have the same length."""
        parts = torch.tensor(prefixes).split(4096)
        with torch.inference_mode():
            rows = [self._model(part, logits_to_keep=1).logits[:, 0] for part in parts]
        return torch.cat(rows).double().numpy()

    def gap(self, prefix: Sequence[int]) -> float:
        """How far the two largest logits after a prefix are apart."""
        low, high = np.sort(self.logits([prefix])[0])[-2:]
        return float(high - low)

    def probabilities(self, prefixes: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Softmax of `logits`."""
        logits = self.logits(prefixes)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)


def _shape() -> dict[str, Any]:
    """What other families share with it."""
    names = ("model_type", "architectures", "rope_parameters")
    return {name: value for name, value in _config().to_dict().items() if name not in names}


def _config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=None,
        tie_word_embeddings=False,
        dtype="float32",
    )


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character."""
    vocab = {"<eos>": EOS} | {char: i for i, char in enumerate(CHARS, start=1)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
