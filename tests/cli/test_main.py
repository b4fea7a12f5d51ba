import os
import subprocess
import sys

import pytest

from specray.cli import main
from specray.models.bundled import BUNDLED


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])

    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("serve", "bench", "models", "version"))


def test_a_users_error_is_one_message_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["models", "prepare", "nonsense"])

    output = capsys.readouterr()
    assert code == 2
    assert output.err.startswith("specray: model `bundled:nonsense` does not exist")
    assert len(output.err.splitlines()) == 1
    assert not output.out


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "specray.cli", "models", "list"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == ""


def test_models_lists_every_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0

    text = capsys.readouterr().out
    assert all(f"bundled:{name}" in text for name in BUNDLED)


def test_version_names_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0

    text = capsys.readouterr().out
    assert f"python {sys.version.split()[0]}" in text
    assert "specray 0." in text


def test_no_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main([])

    assert exit_info.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--version"])

    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith("specray 0.")


def test_models_alone_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert all(f"bundled:{name}" in capsys.readouterr().out for name in list(BUNDLED)[:1])
