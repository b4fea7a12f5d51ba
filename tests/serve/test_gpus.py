import pytest
import ray.util.accelerators.accelerators as ray_names

from specray.control.hardware import PROFILES
from specray.serve.gpus import _TOTAL_MIB, memory_of, smallest_with

GIB = 1 << 30


def test_every_name_is_one_of_ray_s_or_tells_it_from_others() -> None:
    names = {name for name in vars(ray_names).values() if isinstance(name, str)}
    words = {word for name in names for word in name.split("-")}

    assert _TOTAL_MIB.keys() <= names | words | PROFILES.keys()


def test_the_memory_of_all_that_have_a_profile_is_known() -> None:
    assert all(memory_of(name) for name in PROFILES)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("h100", 79.6),
        ("NVIDIA H100 80GB HBM3", 79.6),
        ("NVIDIA H100 NVL", 93.6),
        ("NVIDIA A100-SXM4-40GB", 40),
        ("NVIDIA L40S", 45),
        ("AMD Instinct MI300X", 192),
        ("AMD-Instinct-MI300X-OAM", 192),
    ],
)
def test_drivers_names_are_known_too(name: str, gib: float) -> None:
    assert memory_of(name) == (pytest.approx(gib * GIB, rel=1e-3),)


def test_an_a100_may_be_of_two_sizes() -> None:
    assert memory_of("A100") == (40 * GIB, 80 * GIB)
    assert memory_of("A100-80G") == (80 * GIB,)


@pytest.mark.parametrize("name", [None, "", "TPU-V6E", "GB200", "L40"])
def test_of_others_nothing_is_known(name: str | None) -> None:
    assert memory_of(name) == ()


@pytest.mark.parametrize(
    ("gib", "name"), [(1, "L4"), (22, "L4"), (23, "L40S"), (79, "H100"), (140, "H200"), (500, None)]
)
def test_the_smallest_that_has_room(gib: int, name: str | None) -> None:
    assert smallest_with(gib * GIB) == name
