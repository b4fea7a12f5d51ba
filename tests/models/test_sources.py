from pathlib import Path

import pytest

from specray.errors import InvalidConfigError
from specray.models.sources import find_local, resolve


def test_a_folder_with_a_model_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)

    assert resolve("model") == str(tmp_path / "model")


def test_a_hub_id_stays_as_it_is() -> None:
    assert resolve("HuggingFaceTB/SmolLM2-135M-Instruct") == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"no config\.json"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("source", ["/does/not/exist", "./missing", "a/b/c", "~/missing-model", ""])
def test_what_can_only_be_a_missing_folder_is_not_taken_for_a_hub_id(source: str) -> None:
    with pytest.raises(InvalidConfigError, match="no such folder"):
        resolve(source)


def test_an_unknown_bundle_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidConfigError, match=r"bundled:nonsense.*smollm2-135m-instruct-draft"):
        resolve("bundled:nonsense")


def test_a_folder_lies_where_it_is(tmp_path: Path) -> None:
    assert find_local(str(tmp_path)) == tmp_path.resolve()


@pytest.mark.parametrize("source", ["", "bundled:nothing", "bundled:smollm2-135m-instruct", "a/b"])
def test_what_is_not_here_is_neither_made_nor_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    monkeypatch.setattr("specray.models.sources.default_cache", lambda: tmp_path)
    monkeypatch.setattr("specray.models.sources.try_to_load_from_cache", lambda *_: None)

    assert find_local(source) is None
    assert not list(tmp_path.iterdir())


def test_a_hub_model_lies_in_the_hub_s_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = str(tmp_path / "config.json")
    monkeypatch.setattr("specray.models.sources.try_to_load_from_cache", lambda *_: config)

    assert find_local("a/b") == tmp_path
