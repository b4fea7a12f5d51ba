import pytest
import ray.util.accelerators.accelerators as ray_names

from specray.serve.gpus import _TOTAL_MIB, memory_of, smallest_with

GIB = 1 << 30


def test_every_name_is_one_of_ray_s() -> None:
    assert _TOTAL_MIB.keys() <= {name for name in vars(ray_names).values() if isinstance(name, str)}


def test_an_a100_may_be_of_two_sizes() -> None:
    assert memory_of("A100") == (40 * GIB, 80 * GIB)
    assert memory_of("A100-80G") == (80 * GIB,)


@pytest.mark.parametrize("name", [None, "", "TPU-V6E"])
def test_of_others_nothing_is_known(name: str | None) -> None:
    assert memory_of(name) == ()


@pytest.mark.parametrize(
    ("gib", "name"), [(1, "L4"), (22, "L4"), (23, "L40S"), (79, "H100"), (140, "H200"), (500, None)]
)
def test_the_smallest_that_has_room(gib: int, name: str | None) -> None:
    assert smallest_with(gib * GIB) == name
