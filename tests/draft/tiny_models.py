"""Models small enough to be run from scratch for every token."""

from typing import NamedTuple

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specray.draft.language_model import LanguageModel

VOCAB_SIZE = 100
MAX_POSITIONS = 160


def tiny_llama() -> PreTrainedModel:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def tiny_gpt2() -> PreTrainedModel:
    torch.manual_seed(8)
    config = GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=MAX_POSITIONS,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    return GPT2LMHeadModel(config)


class Pair(NamedTuple):
    """A model as drafts run it, and the same in transformers."""

    model: LanguageModel
    reference: PreTrainedModel
