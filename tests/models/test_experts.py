import json
from pathlib import Path
from typing import Any

import pytest

from specray.models.experts import Experts
from specray.models.size import ModelSize, read_size

NAMES = {  # of how many experts there are, and of how many a token takes
    "qwen3_moe": ("num_experts", "num_experts_per_tok"),
    "mixtral": ("num_local_experts", "num_experts_per_tok"),
    "glm4_moe": ("n_routed_experts", "num_experts_per_tok"),
}
EXPERT = 3 * 64 * 32  # gate, up and down
ATTENTION = 2 * (64 * 64 * 2 + 64 * 32 * 2)
LAYERS = 2


def mixture(folder: Path, kind: str = "qwen3_moe", **changes: Any) -> ModelSize:
    count, per_token = NAMES[kind]
    config = {
        "model_type": kind,
        "dtype": "bfloat16",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 32 if kind == "mixtral" else 48,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 0,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        count: 8,
        per_token: 2,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    size = read_size(str(folder))
    assert size is not None
    return size


@pytest.mark.parametrize("kind", NAMES)
def test_a_token_passes_through_the_experts_that_are_chosen_for_it(
    tmp_path: Path, kind: str
) -> None:
    size = mixture(tmp_path, kind)

    assert size.experts == Experts(8, 2, LAYERS * 8 * EXPERT, 0)
    assert size.num_parameters - size.num_active_parameters == LAYERS * 6 * EXPERT
    assert size.expert_bytes() == 2 * LAYERS * 8 * EXPERT
    assert size.expert_bytes("float32") == 2 * size.expert_bytes()


def test_shared_experts_are_every_token_s(tmp_path: Path) -> None:
    alone = mixture(tmp_path / "alone", "glm4_moe", n_shared_experts=1)
    more = mixture(tmp_path / "more", "glm4_moe", n_shared_experts=3)

    assert more.experts == alone.experts
    assert more.num_active_parameters - alone.num_active_parameters == LAYERS * 2 * EXPERT


def test_a_model_of_one_piece_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_experts": 8}))
    size = read_size(str(tmp_path))

    assert size is not None
    assert size.experts is None
    assert size.num_active_parameters == size.num_parameters
    assert size.expert_bytes() == 0


def test_layers_may_each_have_a_number_of_their_own(tmp_path: Path) -> None:
    """As in Hunyuan-A13B."""
    config = {
        "model_type": "hunyuan_v1_moe",
        "dtype": "bfloat16",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 32,
        "moe_intermediate_size": [32] * LAYERS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 8,
        "moe_topk": [2] * LAYERS,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = read_size(str(tmp_path))

    assert size is not None
    assert size.experts == Experts(8, 2, LAYERS * 8 * EXPERT, 0)
    assert size.ffn_size == 2 * 32


@pytest.mark.parametrize("per_token", [None, 0, 9, []])
def test_where_the_config_does_not_tell_a_token_passes_through_all(
    tmp_path: Path,
    per_token: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("specray.models.experts._PER_TOKEN_NAMES", ("told",))
    size = mixture(tmp_path, told=per_token)

    assert "does not tell" in caplog.text
    assert size.experts is not None
    assert size.num_active_parameters == size.num_parameters


@pytest.mark.parametrize(
    ("kept", "num_quantized"),
    [
        ([], LAYERS * 8 * EXPERT + ATTENTION),
        (["model.layers.1.mlp.gate", "re:.*mlp.gate$"], LAYERS * 8 * EXPERT + ATTENTION),
        (["self_attn"], LAYERS * 8 * EXPERT),
        (["model.layers.1"], (LAYERS * 8 * EXPERT + ATTENTION) // 2),
        (["re:.*down_proj"], LAYERS * 8 * EXPERT * 2 // 3 + ATTENTION),
        (["re:.*gate_proj"], LAYERS * 8 * EXPERT // 3 + ATTENTION),
        (["re:.*mlp.experts.*"], ATTENTION),
    ],
)
def test_experts_are_quantised_like_other_layers(
    tmp_path: Path, kept: list[str], num_quantized: int
) -> None:
    scheme = {"quant_method": "fp8", "modules_to_not_convert": kept}
    size = mixture(tmp_path, quantization_config=scheme)

    assert size.experts is not None
    assert size.num_quantized == num_quantized
    plain = 2 * (size.num_parameters - num_quantized)
    assert size.weight_bytes() == plain + num_quantized
    plain_experts = size.experts.num_parameters - size.experts.num_quantized
    assert size.expert_bytes() == 2 * plain_experts + size.experts.num_quantized
    assert size.weight_bytes() > size.expert_bytes()


@pytest.mark.parametrize(
    ("kept", "share"),
    [
        (["re:.*block_sparse_moe.experts.*"], 0.0),
        (["re:.*\\.w2$"], 2 / 3),
        (["re:.*\\.w1$"], 1 / 3),  # gates and ups are kept together
        (["block_sparse_moe.gate"], 1.0),
    ],
)
def test_mixtral_s_checkpoints_have_names_of_their_own(
    tmp_path: Path, kept: list[str], share: float
) -> None:
    scheme = {"quant_method": "fp8", "modules_to_not_convert": kept}
    size = mixture(tmp_path, "mixtral", quantization_config=scheme)

    assert size.experts is not None
    assert size.experts.num_quantized == pytest.approx(share * size.experts.num_parameters)
