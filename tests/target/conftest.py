"""The tiny model, for the tests that run it. vLLM and torch are imported only where needed."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.target.sources import Sources
    from tests.target.tiny_model import TinyModel


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.target import tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.save(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> "TinyModel":
    from tests.target.tiny_model import TinyModel

    return TinyModel(tiny_folder)


@pytest.fixture(scope="session")
def sources(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> "Sources":
    import torch

    from tests.target.sources import Sources

    torch.set_num_threads(1)  # as a draft's replica has a core, and the target another
    return Sources(tiny_folder, tmp_path_factory.mktemp("sources"))
