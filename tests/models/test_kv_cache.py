import json
from pathlib import Path
from typing import Any

import pytest

from specray.models.kv_cache import KvLayers
from specray.models.size import ModelSize, read_size

SMALL = {
    "dtype": "bfloat16",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def read(folder: Path, kind: str, **changes: Any) -> ModelSize | None:
    config = SMALL | {"model_type": kind}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    return read_size(str(folder))


def known(folder: Path, kind: str, **changes: Any) -> ModelSize:
    size = read(folder, kind, **changes)
    assert size is not None
    return size


GEMMA_4 = {
    "vocab_size_per_layer_input": 100,
    "hidden_size_per_layer_input": 8,
    "sliding_window": 512,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
}
LATENT = {
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "q_lora_rank": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}


@pytest.mark.parametrize(
    ("kind", "changes", "layers"),
    [
        ("llama", {}, [KvLayers(6, 2, 32)]),
        ("mistral", {"sliding_window": 4096}, [KvLayers(6, 2, 32, 4096)]),
        ("mistral", {"sliding_window": None}, [KvLayers(6, 2, 32)]),
        ("gpt_oss", {"sliding_window": 128}, [KvLayers(3, 2, 32, 128), KvLayers(3, 2, 32)]),
        (
            "gemma3_text",
            {"sliding_window": 1024},
            [KvLayers(5, 2, 32, 1024), KvLayers(1, 2, 32)],
        ),
        ("gemma4_text", GEMMA_4, [KvLayers(5, 2, 32, 512), KvLayers(1, 1, 64)]),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 64},
            [KvLayers(2, 2, 32), KvLayers(4, 2, 32, 64)],
        ),
        ("deepseek_v3", LATENT, [KvLayers(6, 1, 24 + 8, is_latent=True)]),
    ],
)
def test_layers_are_told_apart_by_what_they_keep(
    tmp_path: Path, kind: str, changes: dict[str, Any], layers: list[KvLayers]
) -> None:
    assert list(known(tmp_path, kind, **changes).kv_layers) == layers


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3_next", {"num_experts": 4, "num_experts_per_tok": 2}),  # a state instead of tokens
        ("deepseek_v32", LATENT | {"index_topk": 4}),  # and keys by which it chooses what to read
        ("gemma3n_text", {"vocab_size_per_layer_input": 100, "num_kv_shared_layers": 2}),
        ("minicpm3", LATENT),  # vLLM keeps all heads' keys and values
        ("llama4_text", {"num_local_experts": 2, "num_experts_per_tok": 1}),  # reads in chunks
        ("gemma3", {"text_config": SMALL | {"model_type": "gemma3_text"}}),  # sees pictures
        ("gemma4", {"text_config": SMALL | GEMMA_4 | {"model_type": "gemma4_text"}}),  # it, too
        ("gpt_oss", {"layer_types": ["full_attention"] * 5}),  # of six layers
    ],
)
def test_what_is_kept_in_other_ways_is_unknown(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    assert read(tmp_path, kind, **changes) is None


@pytest.mark.parametrize(
    ("changes", "num_heads"),
    [({"multi_query": True}, 1), ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2)],
)
def test_heads_that_falcon_names_in_its_own_ways(
    tmp_path: Path, changes: dict[str, Any], num_heads: int
) -> None:
    config = {name: value for name, value in SMALL.items() if "head" not in name}
    falcon = config | {"model_type": "falcon", "num_attention_heads": 4} | changes
    (tmp_path / "config.json").write_text(json.dumps(falcon))
    size = read_size(str(tmp_path))

    assert size is not None
    assert size.kv_layers == (KvLayers(6, num_heads, 32),)


def test_layers_that_differ_in_other_ways_are_unknown(tmp_path: Path) -> None:
    wider = {"per_layer_config": {"2": {"intermediate_size": 256}}}

    assert read(tmp_path, "llama", **wider) is None


def test_keys_of_another_width_than_the_config_tells_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specray.models.kv_cache.num_kv_heads", lambda _: 3)

    assert read(tmp_path, "llama") is None


def test_all_ranks_hold_the_same_latent(tmp_path: Path) -> None:
    size = known(tmp_path, "deepseek_v3", **LATENT)

    assert size.kv_bytes_per_token() == 6 * (24 + 8) * 2
    assert size.kv_bytes_per_token(num_ranks=4) == size.kv_bytes_per_token()


def test_attention_is_as_wide_as_what_it_multiplies(tmp_path: Path) -> None:
    assert known(tmp_path / "a", "llama").attention_width == 4 * 16
    assert known(tmp_path / "b", "gemma4_text", **GEMMA_4).attention_width == (5 * 64 + 128) // 6
    # For each head a query as wide as latent and key of positions, and a sum as wide as the latent.
    latent = known(tmp_path / "c", "deepseek_v3", **LATENT)
    assert latent.attention_width == 4 * ((24 + 8) + 24) // 2
