import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specray.models.bundled import BundledModel, default_cache, folder_of, prepare


def make_model(build: Callable[[Path], None]) -> BundledModel:
    return BundledModel("tiny", "a test's", "1", build)


def write_config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def test_the_model_is_built_once(tmp_path: Path) -> None:
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        write_config(folder)

    first = prepare(make_model(build), tmp_path)
    second = prepare(make_model(build), tmp_path)

    assert first == second == folder_of(make_model(build), tmp_path)
    assert (first / "config.json").is_file()
    assert len(builds) == 1


def test_a_build_that_fails_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write_config(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        prepare(make_model(fail), tmp_path)

    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (prepare(make_model(write_config), tmp_path) / "config.json").is_file()


def test_what_an_interrupted_build_left_is_not_taken_over(tmp_path: Path) -> None:
    leftover = tmp_path / ".tiny-1.partial"
    leftover.mkdir()
    (leftover / "half-a-file").touch()

    folder = prepare(make_model(write_config), tmp_path)

    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_those_who_ask_at_once_get_one_build(tmp_path: Path) -> None:
    num_askers = 4
    barrier = threading.Barrier(num_askers)
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        write_config(folder)

    def ask() -> Path:
        barrier.wait()
        return prepare(make_model(build), tmp_path)

    with ThreadPoolExecutor(num_askers) as pool:
        folders = {future.result() for future in [pool.submit(ask) for _ in range(num_askers)]}

    assert len(folders) == len(builds) == 1


def test_the_cache_is_where_the_user_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert default_cache() == tmp_path / "specray/models"
