from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specray.control.hardware import PROFILES
from specray.control.roofline import StepLoad
from specray.errors import InvalidConfigError
from specray.models.size import read_size
from specray.target import hardware

LOAD = StepLoad(1, 1, 100)
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"  # in the built-in table: nothing is downloaded


def config(model: str = LLAMA, dtype: torch.dtype = torch.bfloat16, ranks: int = 4) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=model, quantization=None, dtype=dtype, enforce_eager=False
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )


def test_a_model_moves_its_weights_and_its_kv() -> None:
    size = read_size(LLAMA)
    assert size is not None
    shape = hardware.model_shape(size, "bfloat16", "fp8")

    assert shape.weight_bytes == pytest.approx(141e9, rel=0.01)
    assert shape.kv_bytes_per_token == 2 * 80 * 8 * 128  # one byte each
    assert shape.flops_per_token == pytest.approx(141e9, rel=0.01)
    assert shape.attention_width == 64 * 128


def test_a_quantised_model_is_computed_in_eight_bits_where_the_device_can() -> None:
    eight_bits = config("meta-llama/Llama-3.1-405B-Instruct-FP8", ranks=8)
    plain, quantised = (hardware.find_roofline(c, "H100") for c in (config(ranks=8), eight_bits))
    on_a100 = hardware.find_roofline(eight_bits, "A100")

    assert plain is not None
    assert quantised is not None
    assert on_a100 is not None
    assert quantised.intensity(LOAD).ridge == pytest.approx(2 * plain.intensity(LOAD).ridge)
    assert on_a100.intensity(LOAD).ridge == pytest.approx(153, rel=0.01)  # its 16 bits'


def test_configured_hardware_is_taken_at_its_word() -> None:
    roofline = hardware.find_roofline(config(), "H200")

    assert roofline is not None
    assert roofline.hardware is PROFILES["H200"]
    assert roofline.num_ranks == 4
    assert 0.006 < roofline.step_s(LOAD) < 0.012


def test_unknown_hardware_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="H1000"):
        hardware.find_roofline(config(), "H1000")


def test_cores_are_measured() -> None:
    roofline = hardware.find_roofline(config(dtype=torch.float32, ranks=1), "auto")

    assert roofline is not None
    assert roofline.hardware.name.startswith("cpu")
    assert 1e8 < roofline.hardware.bandwidth < 1e13
    assert 1e8 < roofline.hardware.flops("float32") < 1e14


def test_without_a_size_there_is_no_roofline(tmp_path: Any) -> None:
    assert hardware.find_roofline(config(model=str(tmp_path)), "H100") is None


def test_without_a_types_size_there_is_no_roofline() -> None:
    with_cache = config()
    with_cache.cache_config.cache_dtype = "int8_per_token_head"
    assert hardware.find_roofline(with_cache, "H100") is None


def test_step_times_are_kept_apart_by_what_they_depend_on() -> None:
    roofline = hardware.find_roofline(config(), "H100")
    key = hardware.step_time_key(config(), roofline)

    assert key == hardware.step_time_key(config(), roofline)
    others = [
        hardware.step_time_key(config(ranks=8), roofline),
        hardware.step_time_key(config(dtype=torch.float16), roofline),
        hardware.step_time_key(config(model="other"), roofline),
        hardware.step_time_key(config(), hardware.find_roofline(config(), "H200")),
        hardware.step_time_key(config(), None),
    ]
    assert key not in others
