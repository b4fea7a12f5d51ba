from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models_util import pad_heads


def test_a_padded_model_is_the_same_function(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=4,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")

    pad_heads(tmp_path / "model", tmp_path / "padded", num_heads=8, num_kv_heads=4)

    padded = LlamaForCausalLM.from_pretrained(tmp_path / "padded").eval()
    token_ids = torch.arange(10)[None]
    with torch.no_grad():
        torch.testing.assert_close(padded(token_ids).logits, model(token_ids).logits)
    assert padded.config.num_key_value_heads == 4
