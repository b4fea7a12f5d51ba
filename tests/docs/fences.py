"""Commands in the documentation: which there are, and which of them can run where."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "k8s" / "README.md",
    ROOT / "k8s" / "helm" / "specray" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)

ELSEWHERE = {"on a cluster", "takes an hour"}
"""Titles of fences that no test runs: there is no cluster, GPU or container builder here."""
DRY = "takes minutes"
"""Title of fences of which `make` shows what it would do; the rest is run by other tests."""
WITH_SERVICE = "while the service runs"
"""Title of fences that tests/serve/test_service.py runs."""
EXAMPLE = "last_time.py"
"""Title of the proposer in docs/drafts.md, which tests/docs/test_example.py plays a request to."""

_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_COMMANDS = ("bash", "sh", "shell", "console", "python")


class Fence(NamedTuple):
    """A block of code in a page."""

    page: Path
    line: int
    language: str
    title: str  # "" if it has none
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences() -> Iterator[Fence]:
    """All blocks, of every page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in _FENCE.finditer(text):
            indent, info, body = found.groups()
            title = _TITLE.search(info)
            yield Fence(
                page,
                text.count("\n", 0, found.start()) + 1,
                info.split()[0] if info.strip() else "",
                title.group(1) if title else "",
                "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True)),
            )


def commands() -> list[Fence]:
    """The blocks that a reader would run."""
    return [fence for fence in fences() if fence.language in _COMMANDS]


def transcripts() -> list[Fence]:
    """Blocks of a command after a `$` and what it prints."""
    return [fence for fence in fences() if fence.text.startswith("$ ")]
