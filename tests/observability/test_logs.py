import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from specray.config import LogFileConfig
from specray.observability import logs

logger = logging.getLogger("specray.target.somewhere")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The handlers as they were."""
    ours = logging.getLogger("specray")
    before = (list(ours.handlers), ours.level, ours.propagate)
    yield
    for handler in ours.handlers:
        handler.close()
    ours.handlers[:], ours.level, ours.propagate = before
    ours.manager._clear_cache()  # type: ignore[attr-defined]


def test_a_json_line_carries_what_extra_holds(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    logs.write_to(LogFileConfig(path=str(file), is_json=True, level="INFO"))
    logger.info("lost %d", 3, extra={"request_id": "r1", "session_id": 7})
    logger.debug("too quiet")

    (line,) = map(json.loads, file.read_text().splitlines())
    assert line["message"] == "lost 3"
    assert (line["request_id"], line["session_id"]) == ("r1", 7)
    assert (line["levelname"], line["filename"]) == ("INFO", "test_logs.py")
    assert line["component_name"] == "engine"


def test_an_exception_stays_on_its_json_line(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    logs.write_to(LogFileConfig(path=str(file), is_json=True, level="INFO"))
    try:
        int("oh\nno")
    except ValueError:
        logger.exception("failed")

    (line,) = map(json.loads, file.read_text().splitlines())
    assert "ValueError: invalid literal" in line["exc_text"]


def test_a_line_of_text_names_the_request_if_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    logs.write_to(LogFileConfig(path=str(file), is_json=False, level=logging.INFO))
    logger.warning("with", extra={"request_id": "r1"})
    logger.warning("without")

    first, second = file.read_text().splitlines()
    assert first.endswith("engine r1 -- with")
    assert second.endswith("engine -- without")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("chat-1", "chat-1"),
        ("a\nb\x1b[31m\u2028", "ab[31m"),
        ("x" * 1000, "x" * 128),
        ("\ud800é", ""),
        (None, ""),
        (5, ""),
    ],
)
def test_a_name_from_outside_is_short_and_of_one_line(given: object, kept: str) -> None:
    assert logs.printable(given) == kept
