import pytest

from specray.control.hardware import PROFILES, find_profile, named_profile
from specray.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_device_is_known_by_its_drivers_name(device: str, name: str) -> None:
    assert find_profile(device) is PROFILES[name]


@pytest.mark.parametrize("device", ["NVIDIA T4", "NVIDIA GeForce RTX 4090", ""])
def test_another_device_is_not_taken_for_one_of_them(device: str) -> None:
    assert find_profile(device) is None


def test_a_ridge_in_half_precision_lies_where_the_data_sheets_put_it() -> None:
    ridges = {n: p.flops("bfloat16") / p.bandwidth for n, p in PROFILES.items()}

    expected = {"H100": 295, "H200": 206, "B200": 281, "A100": 153, "L40S": 419, "L4": 403}
    assert ridges == pytest.approx(expected | {"MI300X": 247}, rel=0.01)


def test_what_a_device_has_no_units_for_is_computed_in_16_bits() -> None:
    assert PROFILES["H100"].flops("fp4") == PROFILES["H100"].flops("bfloat16")
    assert PROFILES["A100"].flops("fp8") == PROFILES["A100"].flops("bfloat16")
    assert PROFILES["A100"].flops("int8") == 2 * PROFILES["A100"].flops("bfloat16")


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidConfigError, match=r"'H1000'.*H100, H200"):
        named_profile("H1000")
