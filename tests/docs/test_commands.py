"""Docs as tests: a command in the documentation runs here, or says where it would."""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specray.cli import main
from tests.docs.fences import (
    DRY,
    ELSEWHERE,
    EXAMPLE,
    ROOT,
    WITH_SERVICE,
    Fence,
    commands,
    transcripts,
)

pytestmark = pytest.mark.timeout(400)  # of which all but seconds are for loading torch and Ray

_MAKE = re.compile(r"^make [^#\n]*", re.MULTILINE)
_TIMEOUT_S = 110


def run(script: str, folder: Path) -> str:
    """What the script prints, in the repository, with our programs on the path.

    Our own program runs in this process, as loading it takes longer than what it does; `make`
    shows what it would do.
    """
    lines = script.replace("\\\n", " ").strip().splitlines()
    if all(line.startswith("specray ") for line in lines):
        return "".join(_specray(*shlex.split(line, comments=True)[1:]) for line in lines)
    make = folder / "make"
    make.write_text(f'#!/bin/sh\nexec "{shutil.which("make")}" --dry-run "$@"\n')
    make.chmod(0o755)
    path = f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _specray(*words: str) -> str:
    out = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out):
        assert main(words) == 0, words
    return out.getvalue()


def plain() -> list[Fence]:
    return [fence for fence in commands() if not fence.title]


def test_every_command_says_where_it_runs() -> None:
    known = ELSEWHERE | {DRY, WITH_SERVICE, EXAMPLE, ""}
    unknown = [f"{fence}: {fence.title}" for fence in commands() if fence.title not in known]
    assert unknown == []
    here = [str(fence) for fence in plain() if fence.language != "bash"]
    assert here == [], f"only bash is run here; give these the title {WITH_SERVICE!r}"
    assert {fence.title for fence in commands()} == known


@pytest.mark.parametrize("fence", plain(), ids=str)
def test_a_command_runs(fence: Fence, tmp_path: Path) -> None:
    run(fence.text, tmp_path)


@pytest.mark.parametrize("fence", [f for f in commands() if f.title == DRY], ids=str)
def test_make_knows_the_targets_that_take_minutes(fence: Fence, tmp_path: Path) -> None:
    for command in _MAKE.findall(fence.text):
        assert run(command, tmp_path)


@pytest.mark.parametrize("fence", transcripts(), ids=str)
def test_a_transcript_shows_what_the_command_prints(fence: Fence, tmp_path: Path) -> None:
    command, _, shown = fence.text.removeprefix("$ ").partition("\n")
    printed = run(command, tmp_path)
    assert _lines(printed) == _lines(shown)


def _lines(text: str) -> list[str]:
    """Without what depends on which models lie on this machine, and on the line's end."""
    lines = (line.rstrip() for line in text.strip().splitlines())
    return [line for line in lines if not line.lstrip().startswith("tokenizers")]
