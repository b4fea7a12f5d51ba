"""What the `model` fields of the configuration may name."""

import re
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from specray.errors import InvalidConfigError
from specray.models.bundled import BUNDLED, default_cache, find, folder_of, prepare

BUNDLED_PREFIX = "bundled:"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def resolve(source: str) -> str:
    """What transformers and vLLM load: an absolute folder, or a hub id as it came.

    Args:
        source: a folder with a model, a hub id, or `bundled:NAME` (made on first use).

    Raises:
        InvalidConfigError: if the folder is missing or incomplete, or the name is unknown.
    """
    if source.startswith(BUNDLED_PREFIX):
        return str(prepare(find(source.removeprefix(BUNDLED_PREFIX))))
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        return _checked(folder.resolve())
    if source.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(source):
        raise InvalidConfigError(
            f"model `{source}`: there is no such folder; name a folder that holds config.json and "
            "weights, a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct, or bundled:NAME"
        )
    return source


def check_name(source: str) -> None:
    """Sees that a model may be there; nothing is made or downloaded, nor a hub asked.

    Raises:
        InvalidConfigError: as `resolve` would.
    """
    if source.startswith(BUNDLED_PREFIX):
        find(source.removeprefix(BUNDLED_PREFIX))
    else:
        resolve(source)


def ngram_folder(source: str) -> Path:
    """The folder that may hold a draft's n-grams; nothing is made or downloaded.

    Args:
        source: a folder, or `bundled:NAME` of a draft.

    Raises:
        InvalidConfigError: if there is no such folder, or the bundled model is no draft.
    """
    if source.startswith(BUNDLED_PREFIX):
        shipped = find(source.removeprefix(BUNDLED_PREFIX)).shipped
        if shipped is None:
            raise InvalidConfigError(f"model `{source}` is not a draft and has no n-grams")
        return shipped
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise InvalidConfigError(f"model `{source}`: there is no such folder")
    return folder.resolve()


def find_local(source: str) -> Path | None:
    """The folder that a model lies in on this machine; nothing is made or downloaded.

    Args:
        source: as for `resolve`. A name that means nothing lies nowhere.
    """
    if source.startswith(BUNDLED_PREFIX):
        bundled = BUNDLED.get(source.removeprefix(BUNDLED_PREFIX))
        folder = folder_of(bundled, default_cache()) if bundled else None
        return folder if folder and folder.is_dir() else None
    if source and Path(source).expanduser().is_dir():
        return Path(source).expanduser().resolve()
    if source.count("/") != 1 or not _HUB_ID.fullmatch(source):
        return None
    config = try_to_load_from_cache(source, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def _checked(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise InvalidConfigError(
            f"model `{folder}`: the folder has no config.json; name one that was written by "
            "`save_pretrained` or downloaded from a hub"
        )
    return str(folder)
