import json
from pathlib import Path
from typing import Any

import pytest

from specray.models.known import KNOWN
from specray.models.size import ModelSize, is_known_dtype, read_size
from specray.models.smollm2 import HUB_ID

LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"
# As the hub counts the parameters in these checkpoints' files, or those that they quantise.
PARAMETERS = {
    LLAMA_70B: 70_553_706_496,
    "meta-llama/Llama-3.1-405B-Instruct-FP8": 405_853_388_800,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-125m": 125_239_296,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": 235_093_634_560,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    HUB_ID: 134_515_008,
}


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specray.models.sources.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("specray.models.sources.default_cache", lambda: tmp_path)


def known(model: str) -> ModelSize:
    size = read_size(model)
    assert size is not None
    return size


def saved(folder: Path, **changes: Any) -> str:
    """A Llama with one layer of 4 linear feed-forward and attention weights worth counting."""
    config = {
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    return str(folder)


ATTENTION = 2 * (64 * 64 * 2 + 64 * 32 * 2)
FEED_FORWARD = 2 * 3 * 64 * 128
REST = 2 * 100 * 64 + 5 * 64  # embeddings, head, norms


@pytest.mark.parametrize(("model", "count"), PARAMETERS.items())
def test_the_table_s_models_have_the_parameters_that_the_hub_counts(model: str, count: int) -> None:
    assert known(model).num_parameters == count
    assert known(model).source == "built-in table"


def test_every_model_of_the_table_can_be_measured() -> None:
    assert all(read_size(model) is not None for model in KNOWN)


def test_a_folder_s_own_config_counts(tmp_path: Path) -> None:
    size = known(saved(tmp_path))

    assert size.source == "config.json"
    assert size.num_parameters == ATTENTION + FEED_FORWARD + REST
    assert size.weight_bytes() == 2 * size.num_parameters
    assert size.weight_bytes("float32") == 4 * size.num_parameters


def test_keys_and_values_are_counted_by_layer_and_kv_head(tmp_path: Path) -> None:
    size = known(saved(tmp_path))

    assert size.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 2  # K and V, layers, heads, dim, bytes
    assert size.kv_bytes_per_token("fp8") == size.kv_bytes_per_token() // 2


def test_ranks_share_kv_heads_until_each_has_one(tmp_path: Path) -> None:
    size = known(saved(tmp_path))

    assert size.kv_bytes_per_token(num_ranks=2) == size.kv_bytes_per_token() // 2
    assert size.kv_bytes_per_token(num_ranks=4) == size.kv_bytes_per_token() // 2


@pytest.mark.parametrize(
    ("scheme", "num_quantized", "bits"),
    [
        ({"quant_method": "fp8"}, ATTENTION + FEED_FORWARD, 8),
        (
            {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn", "lm_head"]},
            FEED_FORWARD,
            8,
        ),
        (
            {"quant_method": "fp8", "ignored_layers": ["model.layers.1"]},
            (ATTENTION + FEED_FORWARD) // 2,
            8,
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            ATTENTION + FEED_FORWARD,
            4 + 20 / 128,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 64}}},
                "ignore": ["re:.*self_attn.*"],
            },
            FEED_FORWARD,
            4.25,
        ),
    ],
)
def test_only_what_is_quantised_shrinks(
    tmp_path: Path, scheme: dict[str, Any], num_quantized: int, bits: float
) -> None:
    size = known(saved(tmp_path, quantization_config=scheme))

    assert size.num_quantized == num_quantized
    plain = 2 * (size.num_parameters - num_quantized)
    assert size.weight_bytes() == plain + num_quantized * bits / 8


def _compressed(kind: str, inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"weights": {"num_bits": 8, "type": kind}, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        (_compressed("float", {"num_bits": 8, "type": "float"}), "fp8"),
        (_compressed("int", {"num_bits": 8, "type": "int"}), "int8"),
        (_compressed("int", None), "bfloat16"),  # weights alone are widened
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "bfloat16"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["mlp"]}, "bfloat16"),  # too little
    ],
)
def test_products_are_computed_in_eight_bits_only_if_both_sides_are(
    tmp_path: Path, scheme: dict[str, Any], dtype: str
) -> None:
    size = known(saved(tmp_path, quantization_config=scheme))

    assert size.compute_dtype() == dtype
    assert size.compute_dtype("float16") == (dtype if dtype != "bfloat16" else "float16")


def test_only_a_mixture_s_experts_are_of_four_bits_in_mxfp4(tmp_path: Path) -> None:
    """gpt-oss-120b's config: 116.8 billion parameters, a checkpoint of 60.8 GiB."""
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    scheme = {"quant_method": "mxfp4", "modules_to_not_convert": [*kept, "lm_head"]}
    shape = {"num_hidden_layers": 36, "num_local_experts": 128, "num_experts_per_tok": 4}
    config = {"model_type": "gpt_oss", "dtype": "bfloat16", "quantization_config": scheme}
    (tmp_path / "config.json").write_text(json.dumps(config | shape))
    size = known(str(tmp_path))

    assert size.num_parameters == pytest.approx(116.8e9, rel=1e-3)
    assert size.weight_bytes() / 2**30 == pytest.approx(60.8, rel=1e-3)
    assert size.compute_dtype() == "bfloat16"


def test_a_plain_checkpoint_may_be_quantised_by_vllm(tmp_path: Path) -> None:
    size = read_size(saved(tmp_path), quantization="fp8")

    assert size is not None
    assert size.num_quantized == ATTENTION + FEED_FORWARD


def test_the_layers_of_one_do_not_match_those_of_ten(tmp_path: Path) -> None:
    scheme = {"quant_method": "fp8", "ignored_layers": ["model.layers.1.mlp"]}
    size = known(saved(tmp_path, num_hidden_layers=12, quantization_config=scheme))

    assert size.num_quantized == 6 * (ATTENTION + FEED_FORWARD) - FEED_FORWARD // 2


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization_config": {"quant_method": "magic"}},
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        {"model_type": "mystery"},
        {"model_type": "qwen3_next"},
        {"hidden_size": 65},  # four heads can't share that
        {"num_hidden_layers": 0},
        {"model_type": "bloom", "n_layer": 2},  # has no positions to run out of
        {"model_type": "dbrx"},
    ],
)
def test_what_the_config_does_not_tell_is_unknown(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_size(saved(tmp_path, **changes)) is None


def test_a_model_that_is_nowhere_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("specray.models.size.AutoConfig.from_pretrained", unreachable)

    assert read_size("nobody/nothing") is None
    assert read_size("bundled:nothing") is None


def test_types_that_are_not_known_are_told_apart() -> None:
    assert all(map(is_known_dtype, ["auto", "bfloat16", "fp8"]))
    assert not is_known_dtype("fp8_inc_turbo")
