"""The pages hang together, and what comes from the code is what the code says."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from docs.generate import DOCS, EXAMPLES, outputs
from specray.serve import metrics
from tests.docs.fences import PAGES, ROOT

_LINK = re.compile(r"(?<!`)!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@pytest.mark.parametrize("path", outputs(), ids=lambda path: path.name)
def test_a_generated_part_is_up_to_date(path: Path) -> None:
    assert path.read_text() == outputs()[path], "run `python docs/generate.py`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    text = _CODE.sub("", page.read_text())
    broken = [link for link in _LINK.findall(text) if not _leads_somewhere(page, link)]
    assert broken == []


def _leads_somewhere(page: Path, link: str) -> bool:
    if link.startswith(("http://", "https://")):
        return True
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / ".ci" / "mkdocs.yml").read_text())["nav"]
    named = {page for entry in nav for page in (_pages(entry))}
    assert named == {page.name for page in DOCS.glob("*.md")}


def _pages(entry: str | dict[str, list[str]]) -> list[str]:
    return [entry] if isinstance(entry, str) else [p for pages in entry.values() for p in pages]


def test_the_metrics_table_has_every_metric() -> None:
    declared = set(re.findall(r'"(specray_\w+)"', Path(metrics.__file__).read_text()))
    told = set(re.findall(r"`(specray_\w+)`", (DOCS / "metrics.md").read_text()))
    assert len(declared) > 15
    assert declared - told == set()


def test_pages_name_no_metric_that_does_not_exist() -> None:
    declared = set(re.findall(r'"(specray_\w+)"', Path(metrics.__file__).read_text()))
    for page in DOCS.glob("*.md"):
        named = set(
            re.findall(r"`(specray_\w+?)(?:_total|_bucket)?(?:\{[^`]*)?`", page.read_text())
        )
        assert named - declared - {"specray_target", "specray_draft", "specray_router"} == set(), (
            page
        )


def test_speculation_pays_less_the_fuller_the_batch() -> None:
    for example in EXAMPLES.values():
        best = [
            max(example.tokens_per_s(n, k) for k in range(9)) / example.tokens_per_s(n, 0)
            for n in (1, 16, 64, 256)
        ]
        assert best == sorted(best, reverse=True)
        assert best[0] > 1.25


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    mkdocs = ROOT / ".venv-docs" / "bin" / "mkdocs"
    if not mkdocs.exists():
        pytest.skip("`make docs` has not been run")
    subprocess.run(
        [
            mkdocs,
            "build",
            "--quiet",
            "--strict",
            "-f",
            ".ci/mkdocs.yml",
            "--site-dir",
            tmp_path / "site",
        ],
        cwd=ROOT,
        check=True,
        timeout=110,
    )
    for page in (tmp_path / "site").glob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text()
        )
        assert loaded == [], page
    shutil.rmtree(tmp_path / "site")
