"""The work folder: plain files that appear complete or not at all."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from specray.errors import InvalidConfigError
from specray.models.ngrams import NGRAM_FILE


class WorkFolder:
    """Where each step finds what the step before it left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    @property
    def prompts(self) -> Path:
        """All prompts, of both splits, as JSON lines."""
        return self.path / "prompts.jsonl"

    @property
    def synthetic(self) -> Path:
        """Folder of the prompts that the target wrote, a file per shard."""
        return self._folder("synthetic")

    @property
    def answers(self) -> Path:
        """Folder of the target's answers, a file per shard."""
        return self._folder("answers")

    @property
    def student(self) -> Path:
        """Which layers the student has, and how they were found."""
        return self.path / "student.json"

    @property
    def training(self) -> Path:
        """Folder of what a training goes on from, its curve and its best layers."""
        return self._folder("training")

    @property
    def report(self) -> Path:
        """What the draft will bring, for machines."""
        return self.path / "report.json"

    @property
    def markdown(self) -> Path:
        """What the draft will bring, for people."""
        return self.path / "REPORT.md"

    @property
    def commands(self) -> Path:
        """The user's commands that this folder is from, one a line."""
        return self.path / "commands.txt"

    @property
    def told(self) -> Path:
        """The options that each step was done with."""
        return self.path / "told.json"

    @property
    def shards(self) -> Path:
        """Which answers the training uses."""
        return self.training / "shards.json"

    @property
    def checkpoint(self) -> Path:
        """What a training goes on from."""
        return self.training / "checkpoint.pt"

    @property
    def curve(self) -> Path:
        """Figures of held-out answers during the training, as JSON lines."""
        return self.training / "curve.jsonl"

    @property
    def best(self) -> Path:
        """The layers that were best on held-out answers."""
        return self.training / "best.safetensors"

    @property
    def is_trained(self) -> bool:
        """Whether there is something that another training would go on with."""
        return self.checkpoint.is_file() or self.best.is_file()

    @property
    def head(self) -> Path:
        """The tokens that the student can say, by falling frequency."""
        return self.training / "head.json"

    @property
    def ngrams(self) -> Path:
        """The n-gram model of the target's answers."""
        return self.path / NGRAM_FILE

    def read_head(self) -> list[int]:
        """The tokens that the student can say.

        Raises:
            InvalidConfigError: there was no training yet.
        """
        return json.loads(self._trained(self.head).read_text("utf-8"))

    def find_best(self) -> Path:
        """The file of the best layers.

        Raises:
            InvalidConfigError: there was no training yet.
        """
        return self._trained(self.best)

    def _trained(self, path: Path) -> Path:
        if not path.is_file():
            raise InvalidConfigError(
                f"--work {self.path}: nothing was trained; run `specray distill` with --only train"
            )
        return path

    def _folder(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        return folder


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file that a kill at any moment leaves as it was or complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes one JSON value."""
    write_text(path, json.dumps(value) + "\n")


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Writes one JSON value a line."""
    text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Writes a text."""
    write_whole(path, lambda partial: partial.write_text(text, "utf-8"))


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Line numbers, from 1, and values of a JSON lines file; empty lines are left out.

    Raises:
        InvalidConfigError: naming the line that is no JSON, or the file that can't be read.
    """
    try:
        lines = path.read_text("utf-8").split("\n")  # splitlines also splits within texts
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise InvalidConfigError(f"{path}, line {number}: no JSON: {error}") from None
