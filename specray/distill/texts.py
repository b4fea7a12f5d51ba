"""Texts that are on every machine with Python: its library, and what packages say of themselves."""

import ast
import re
import sysconfig
import zlib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

_HELD_OUT_SHARE = 8  # one document in so many
_MIN_WORDS, _MAX_WORDS = 45, 130
_MIN_LINES, _MAX_LINES = 5, 22
_MIN_LETTERS = 0.8  # share of letters, spaces and plain punctuation that makes a passage prose
_PROSE = re.compile(r"[A-Za-z ,.;:'()-]")


class Passage(NamedTuple):
    """A piece of a document."""

    text: str
    is_code: bool
    held_out: bool  # all of a document's pieces are, or none


def find_passages() -> list[Passage]:
    """All that this machine offers, always in the same order, without duplicates."""
    found = dict.fromkeys((*_library_passages(), *_package_passages()))
    return list(found)


def _is_held_out(document: str) -> bool:
    return zlib.crc32(document.encode()) % _HELD_OUT_SHARE == 0


def _library_passages() -> Iterator[Passage]:
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py")):
        name = str(path.relative_to(folder))
        if name.startswith(("site-packages", "test", "idlelib", "lib2to3")):
            continue
        yield from _split_source(path.read_text("utf-8", errors="replace"), _is_held_out(name))


def _split_source(source: str, held_out: bool) -> Iterator[Passage]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        for text in _split_prose(ast.get_docstring(node) or ""):
            yield Passage(text, is_code=False, held_out=held_out)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            body = lines[node.lineno - 1 : node.end_lineno]
            if _MIN_LINES <= len(body) <= _MAX_LINES:
                indent = len(body[0]) - len(body[0].lstrip())
                text = "\n".join(line[indent:] for line in body)
                yield Passage(text, is_code=True, held_out=held_out)


def _package_passages() -> Iterator[Passage]:
    packages = {package.metadata["Name"]: package for package in distributions()}
    for name, package in sorted(packages.items()):
        metadata: Any = package.metadata
        texts = [metadata.get("Description") or metadata.get_payload()]
        licences = [f for f in package.files or () if "LICEN" in f.name.upper()]
        texts += [_read(Path(str(package.locate_file(file)))) for file in licences[:1]]
        for text in texts:
            for passage in _split_prose(str(text)):
                yield Passage(passage, is_code=False, held_out=_is_held_out(name))


def _read(path: Path) -> str:
    return path.read_text("utf-8", errors="replace") if path.is_file() else ""


def _split_prose(text: str) -> Iterator[str]:
    """Paragraphs, the short ones joined, that read as prose."""
    words: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if not _is_prose(paragraph):
            words = []
            continue
        words += paragraph.split()
        if len(words) >= _MIN_WORDS:
            if len(words) <= _MAX_WORDS:
                yield " ".join(words)
            words = []


def _is_prose(paragraph: str) -> bool:
    return len(_PROSE.findall(paragraph.replace("\n", " "))) >= _MIN_LETTERS * len(paragraph) > 0
