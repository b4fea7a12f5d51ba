import json
from pathlib import Path

import pytest

from specray.control.model_shape import shape_of
from specray.control.roofline import Window
from specray.models.size import ModelSize, read_size

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"  # in the built-in table: nothing is downloaded
MIXTURE = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"


def known(model: str) -> ModelSize:
    size = read_size(model)
    assert size is not None
    return size


def test_a_model_moves_its_weights_and_its_kv() -> None:
    shape = shape_of(known(LLAMA), "bfloat16", "fp8")

    assert shape.weight_bytes == pytest.approx(141e9, rel=0.01)
    assert shape.kv_bytes_per_token == 2 * 80 * 8 * 128  # one byte each
    assert shape.flops_per_token == pytest.approx(141e9, rel=0.01)
    assert shape.attention_width == 64 * 128
    assert (shape.expert_bytes, shape.idle_share) == (0, 0)


def test_without_types_it_is_as_in_the_checkpoint() -> None:
    size = known(LLAMA)

    assert shape_of(size) == shape_of(size, "bfloat16", "bfloat16")
    assert shape_of(size, "float32").activation_bytes == 4
    assert shape_of(size, "float32").weight_bytes == 2 * shape_of(size).weight_bytes


def test_a_mixture_computes_with_the_experts_of_each_token() -> None:
    shape = shape_of(known(MIXTURE))

    assert shape.dtype == "fp8"
    assert shape.flops_per_token == pytest.approx(2 * 22e9, rel=0.02)  # "A22B"
    assert shape.weight_bytes == pytest.approx(236e9, rel=0.01)
    assert shape.expert_bytes == pytest.approx(227e9, rel=0.01)
    assert shape.idle_share == 120 / 128


def test_layers_with_a_window_are_told_apart(tmp_path: Path) -> None:
    config = {"model_type": "gpt_oss", "dtype": "bfloat16", "sliding_window": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = shape_of(known(str(tmp_path)))

    per_token = 2 * 18 * 8 * 64 * 2
    assert shape.windows == (Window(18, 128, per_token),)
    assert shape.kv_bytes_per_token == per_token
    assert shape.num_layers == 36
