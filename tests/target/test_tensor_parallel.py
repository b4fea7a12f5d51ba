"""Two ranks on the CPU: greedy identity, and exact distributions at temperature 1."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.target.engine import Engine, specray_engine
from tests.target.exactness import BATCH, assert_exact_at_temperature_1, assert_greedy_identity
from tests.target.tiny_model import TinyModel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    with specray_engine(
        tiny_folder, tensor_parallel_size=2, max_num_seqs=BATCH, num_gpu_blocks_override=300
    ) as engine:
        yield engine


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_greedy_identity(engine: Engine, tiny: TinyModel, noise: float) -> None:
    assert_greedy_identity(engine, tiny, noise)


def test_distribution_at_temperature_1(engine: Engine, tiny: TinyModel) -> None:
    assert_exact_at_temperature_1(engine, tiny)
