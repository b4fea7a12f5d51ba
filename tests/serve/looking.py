"""The page at `/ui` as a person meets it, in a real browser; run against a running service."""

from pathlib import Path

from tests.serve.chromium import Page

DESKTOP, PHONE = (1200, 900), (390, 844)
_TAB, _ENTER, _CTRL = ("Tab", 9), ("Enter", 13), 2
_PROMPT = "Write the numbers from 1 to 20, each on a line of its own."


def walk_through(page: Page, url: str, folder: Path) -> None:
    """Look at it in every shape, ask by keyboard alone, and read the coloured answer."""
    page.look(*DESKTOP, "light")
    page.open(f"{url}/ui")
    page.wait_for("document.querySelectorAll('#targets li:not(.down)').length > 0")
    assert page.run("document.querySelectorAll('#drafts li:not(.down)').length") > 0
    assert page.run("document.querySelectorAll('#topology line').length") > 1
    _ask_by_keyboard(page)
    _check_answers(page)
    _look_at_all_sides(page, folder)
    assert page.complaints == []


def _ask_by_keyboard(page: Page) -> None:
    reached = []
    for _ in range(12):
        page.press(*_TAB)
        reached.append(page.run("document.activeElement.id || document.activeElement.name"))
        outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", f"focus on {reached[-1]} can't be seen"
        if reached[-1] == "prompt":
            break
    assert reached[-1] == "prompt", reached
    page.run("document.activeElement.select()")
    page.type(_PROMPT)
    page.press(*_ENTER, _CTRL)
    page.wait_for("document.getElementById('verdict').textContent.startsWith('Done.')", 90.0)


def _check_answers(page: Page) -> None:
    on, off = (page.run(f"document.getElementById('{side}-text').textContent") for side in _SIDES)
    assert len(on) > 20
    assert on == off or "differ" in page.run("document.getElementById('verdict').textContent")
    coloured = page.run("document.querySelectorAll('#on-text span[class]').length")
    figures = page.run("document.getElementById('on-figures').textContent")
    assert coloured > 0
    assert f"{coloured} accepted" in figures
    assert page.run("document.querySelectorAll('#off-text span[class]').length") == 0
    assert page.run("document.activeElement.id") == "send"
    unnamed = (
        "[...document.querySelectorAll('input,select,textarea')].filter(e => !e.labels.length)"
    )
    assert page.run(f"{unnamed}.length") == 0


def _look_at_all_sides(page: Page, folder: Path) -> None:
    grounds = set()
    for shape, size in (("desktop", DESKTOP), ("phone", PHONE)):
        for scheme in ("light", "dark"):
            page.look(*size, scheme)
            page.wait_for(f"innerWidth === {size[0]}")
            assert page.run("document.documentElement.scrollWidth") <= size[0]
            grounds.add(page.run("getComputedStyle(document.body).backgroundColor"))
            page.screenshot(folder / f"{shape}-{scheme}.png")
    assert len(grounds) == 2


_SIDES = ("on", "off")
