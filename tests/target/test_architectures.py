"""Targets that are built otherwise than Llama: greedy identity, and exact distributions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.target import tiny_model
from tests.target.engine import Engine, specray_engine
from tests.target.exactness import BATCH, assert_exact_at_temperature_1, assert_greedy_identity
from tests.target.tiny_model import TinyModel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SAVE = {"mixture": tiny_model.save_mixture, "windows": tiny_model.save_windowed}


@pytest.fixture(scope="module", params=SAVE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    SAVE[request.param](folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> TinyModel:
    return TinyModel(folder)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with specray_engine(folder, max_num_seqs=BATCH, num_gpu_blocks_override=300) as engine:
        yield engine


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_greedy_identity(engine: Engine, model: TinyModel, noise: float) -> None:
    assert_greedy_identity(engine, model, noise)


def test_distribution_at_temperature_1(engine: Engine, model: TinyModel) -> None:
    assert_exact_at_temperature_1(engine, model)
