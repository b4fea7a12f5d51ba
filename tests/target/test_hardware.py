from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specray.control.hardware import PROFILES, HardwareProfile
from specray.control.roofline import StepLoad
from specray.errors import InvalidConfigError
from specray.target import hardware
from specray.target.measuring import Speeds

LOAD = StepLoad(1, 1, 100)
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"  # in the built-in table: nothing is downloaded


def config(
    model: str = LLAMA,
    dtype: torch.dtype = torch.bfloat16,
    ranks: int = 4,
    *,
    has_expert_ranks: bool = False,
) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=model, quantization=None, dtype=dtype, enforce_eager=False
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=ranks, enable_expert_parallel=has_expert_ranks
        ),
    )


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


def unknown_gpu(monkeypatch: pytest.MonkeyPatch, name: str = "NVIDIA RTX 9090") -> list[Any]:
    """The platform has that GPU, of 1 TB/s and 100 TFLOP/s; returns what is measured of it."""
    measured: list[Any] = []

    def measure(*args: Any) -> Speeds:
        measured.append(args)
        return Speeds(1e12, 1e14)

    gpu = SimpleNamespace(is_cpu=lambda: False, get_device_name=lambda: name)
    monkeypatch.setattr(hardware, "current_platform", gpu)
    monkeypatch.setattr(hardware.measuring, "measure", measure)
    return measured


def test_a_gpu_without_a_data_sheet_is_measured_by_its_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured, cuda = unknown_gpu(monkeypatch), torch.device("cuda:1")
    assert hardware.find_roofline(config(), "auto") is None  # the engine does not touch it
    assert not measured

    profile = hardware.measure_device(config(), "auto", cuda)

    assert profile is not None
    assert measured == [(cuda, torch.bfloat16)]
    assert (profile.name, profile.bandwidth) == ("NVIDIA RTX 9090", 1e12)
    roofline = hardware.find_roofline(config(), "auto", profile)
    assert roofline is not None
    assert roofline.intensity(LOAD).ridge == pytest.approx(100)
    assert roofline.step_s(LOAD) > 0.03  # 141 GB by four


def test_a_known_gpu_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = unknown_gpu(monkeypatch, "AMD_Instinct_MI300X")
    cuda = torch.device("cuda")

    assert hardware.measure_device(config(), "auto", cuda) is None
    assert hardware.measure_device(config(), "H200", cuda) is None
    assert not measured


def test_a_gpu_without_room_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def measure(*_: Any) -> Speeds:
        raise torch.OutOfMemoryError("2 GiB")

    unknown_gpu(monkeypatch)
    monkeypatch.setattr(hardware.measuring, "measure", measure)

    assert hardware.measure_device(config(), "auto", torch.device("cuda")) is None
    assert "no memory to measure" in caplog.text


def test_cores_measured_at_an_earlier_start_are_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(hardware.measuring, "measure")
    cores = HardwareProfile("cpu, 2 threads", 9e9, {"float32": 1e11}, 9e9)
    roofline = hardware.find_roofline(config(dtype=torch.float32), "auto", cores)

    assert roofline is not None
    assert roofline.hardware is cores


def test_what_was_measured_does_not_replace_a_data_sheet() -> None:
    cores = HardwareProfile("cpu, 2 threads", 9e9, {"float32": 1e11}, 9e9)
    roofline = hardware.find_roofline(config(), "H100", cores)

    assert roofline is not None
    assert roofline.hardware is PROFILES["H100"]


def test_without_a_size_there_is_no_roofline(tmp_path: Any) -> None:
    assert hardware.find_roofline(config(model=str(tmp_path)), "H100") is None


def test_without_a_types_size_there_is_no_roofline() -> None:
    with_cache = config()
    with_cache.cache_config.cache_dtype = "int8_per_token_head"
    assert hardware.find_roofline(with_cache, "H100") is None


def test_step_times_are_kept_apart_by_what_they_depend_on() -> None:
    key = hardware.step_time_key(config(), "H100")

    assert key == hardware.step_time_key(config(), "H100")
    others = [
        hardware.step_time_key(config(ranks=8), "H100"),
        hardware.step_time_key(config(has_expert_ranks=True), "H100"),
        hardware.step_time_key(config(dtype=torch.float16), "H100"),
        hardware.step_time_key(config(model="other"), "H100"),
        hardware.step_time_key(config(), "H200"),
        hardware.step_time_key(config(), "auto"),
    ]
    assert key not in others


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: EPYC 7763\nflags\t: avx2\n", "EPYC 7763"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "0x41 0xd40"),  # Arm
        (None, "arm64"),  # no Linux
    ],
)
def test_step_times_of_cores_are_kept_apart_by_their_model(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, name: str
) -> None:
    def read_text(_: Path) -> str:
        if cpuinfo is None:
            raise FileNotFoundError
        return cpuinfo

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(hardware.platform, "processor", lambda: "")
    monkeypatch.setattr(hardware.platform, "machine", lambda: "arm64")
    key = hardware.step_time_key(config(), "auto")

    assert key["hardware"] == f"{name}, {torch.get_num_threads()} threads"
    assert key["code"]  # what was learnt of slower products is not taken for these


def test_step_times_of_a_gpu_are_kept_by_its_profile_or_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown_gpu(monkeypatch)
    assert hardware.step_time_key(config(), "auto")["hardware"] == "NVIDIA RTX 9090"
    assert "code" not in hardware.step_time_key(config(), "auto")
    unknown_gpu(monkeypatch, "AMD_Instinct_MI300X_HF")
    assert hardware.step_time_key(config(), "auto")["hardware"] == "MI300X"
