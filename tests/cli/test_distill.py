from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from specray.cli import main


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--layers", "a,b"], "--layers a,b: numbers"),
        (["--part", "3"], "--part 3: I/N"),
        (["--minutes", "5", "--tokens", "5"], "one of --minutes and --tokens"),
        (["--minutes", "-1"], "--minutes -1.0: must be more than 0"),
        (["--minutes", "nan"], "--minutes nan: must be a finite number"),
        (["--minutes", "inf"], "--minutes inf: must be a finite number"),
        (["--rate", "nan"], "--rate nan: must be a finite number"),
        (["--seed", "-1"], "--seed -1: must be 0 or more"),
        (["--threads", "-1"], "--threads -1: must be more than 0"),
        (["--num-prompts", "-50"], "--num-prompts -50: must be 0 or more"),
        (["--num-prompts", "0"], "--num-prompts 0: leaves none to train on"),
        (["--only-prompts"], "--only-prompts: name your own prompts with --prompts"),
    ],
)
def test_a_switch_that_makes_no_sense_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    (tmp_path / "config.json").write_text("{}")

    code = main(["distill", str(tmp_path), str(tmp_path / "out"), *words])

    assert code == 2
    assert complaint in capsys.readouterr().err


def test_a_target_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["distill", str(tmp_path / "nowhere"), str(tmp_path / "out")])

    assert code == 2
    assert "nowhere`: there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "choice"), [([], "auto"), (["--compile", "on"], "on"), (["--compile", "off"], "off")]
)
def test_compiling_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], choice: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    pipeline = Mock()
    monkeypatch.setattr("specray.cli.distill.Pipeline", pipeline)

    assert main(["distill", str(tmp_path), str(tmp_path / "out"), *words]) == 0

    settings, _ = pipeline.call_args.args
    assert settings.compiling == choice


class _Failing:
    """A pipeline that ends in an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, *_: object) -> "_Failing":
        return self

    def run(self, step: str) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 35 bytes."),
        MemoryError("Unable to allocate 35 bytes"),
    ],
)
def test_a_target_that_fits_no_device_is_an_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("specray.cli.distill.Pipeline", _Failing(error))

    code = main(["distill", str(tmp_path), str(tmp_path / "out")])

    assert code == 2
    complaint = capsys.readouterr().err
    assert "name a smaller target or use a larger device" in complaint
    assert "--max-prompt-tokens" in complaint


def test_an_error_that_is_not_about_memory_is_not_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("specray.cli.distill.Pipeline", _Failing(RuntimeError("unforeseen")))

    with pytest.raises(RuntimeError, match="unforeseen"):
        main(["distill", str(tmp_path), str(tmp_path / "out")])
