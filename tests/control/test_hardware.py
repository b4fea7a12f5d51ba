import json
import pickle

import pytest

from specray.control.hardware import PROFILES, HardwareProfile, find_profile, named_profile
from specray.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40G"),
        ("A100-40G", "A100-40G"),  # Ray's
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("AMD_Instinct_MI300X", "MI300X"),  # vLLM's on ROCm
        ("AMD_Instinct_MI300X_HF", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),  # amd-smi's
        ("AMD-Instinct-MI300X-OAM", "MI300X"),  # Ray's
    ],
)
def test_a_device_is_known_by_the_names_it_goes_by(device: str, name: str) -> None:
    assert find_profile(device) is PROFILES[name]


@pytest.mark.parametrize(
    "device",
    [
        *("NVIDIA T4", "NVIDIA GeForce RTX 4090", "NVIDIA GB200", "NVIDIA H20", "cpu", ""),
        *("AMD_Instinct_MI300A", "AMD_Instinct_MI308X", "AMD_Instinct_MI325X"),
        *("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM-64GB"),
    ],
)
def test_another_device_is_not_taken_for_one_of_them(device: str) -> None:
    assert find_profile(device) is None


def test_a_ridge_in_half_precision_lies_where_the_data_sheets_put_it() -> None:
    ridges = {n: p.flops("bfloat16") / p.bandwidth for n, p in PROFILES.items()}

    expected = {"H100": 295, "H200": 206, "B200": 281, "A100": 153, "L40S": 419, "L4": 403}
    expected |= {"H100-PCIE": 378, "H100-NVL": 214, "H200-NVL": 174, "MI300X": 247}
    expected |= {"A100-40G": 201, "A100-PCIE": 161, "A100-PCIE-40G": 201}
    assert ridges == pytest.approx(expected, rel=0.01)


def test_a_profile_comes_back_from_json() -> None:
    for profile in PROFILES.values():
        assert HardwareProfile.from_state(json.loads(json.dumps(profile.state()))) == profile


@pytest.mark.parametrize(
    "change",
    [
        {"peak_flops": {}},
        {"peak_flops": {"float32": 0.0}},
        {"peak_flops": 3},
        {"bandwidth": float("nan")},
        {"bandwidth": "fast"},
        {"colour": "green"},
    ],
)
def test_what_no_hardware_can_do_does_not_come_back(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="hardware"):
        HardwareProfile.from_state(PROFILES["L4"].state() | change)


def test_what_a_device_has_no_units_for_is_computed_in_16_bits() -> None:
    assert PROFILES["H100"].flops("fp4") == PROFILES["H100"].flops("bfloat16")
    assert PROFILES["A100"].flops("fp8") == PROFILES["A100"].flops("bfloat16")
    assert PROFILES["A100"].flops("int8") == 2 * PROFILES["A100"].flops("bfloat16")


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidConfigError, match=r"'H1000'.*H100, H100-PCIE"):
        named_profile("H1000")


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_profiles_can_be_sent_to_other_processes(name: str) -> None:
    assert pickle.loads(pickle.dumps(PROFILES[name])) == PROFILES[name]
