import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest
from ray._common.formatters import JSONFormatter

from specray.serve.logs import engine_log, join_serve


@pytest.fixture(autouse=True)
def serve_logger() -> Iterator[logging.Logger]:
    """Serve's logger as in a replica, and everything as it was afterwards."""
    ours, serve = logging.getLogger("specray"), logging.getLogger("ray.serve")
    before = (ours.parent, list(serve.handlers), serve.level, serve.propagate)
    serve.handlers, serve.propagate = [], False
    yield serve
    close_all(serve)
    ours.parent, serve.handlers, serve.level, serve.propagate = before
    serve.manager._clear_cache()  # type: ignore[attr-defined]


def close_all(serve: logging.Logger) -> None:
    for handler in [h for h in serve.handlers if isinstance(h, MemoryHandler)]:
        file = handler.target
        handler.close()
        assert isinstance(file, logging.FileHandler)
        file.close()
        serve.removeHandler(handler)


def configure(serve: logging.Logger, path: Path, formatter: logging.Formatter) -> None:
    file = logging.FileHandler(path)
    file.setFormatter(formatter)
    close_all(serve)
    serve.addHandler(MemoryHandler(1, target=file))


def test_our_lines_go_where_serve_s_go_also_when_that_changes(
    serve_logger: logging.Logger, tmp_path: Path
) -> None:
    join_serve()
    line = logging.Formatter("%(message)s")
    for name, level in (("first", logging.INFO), ("second", logging.WARNING)):
        configure(serve_logger, tmp_path / name, line)
        serve_logger.setLevel(level)
        logging.getLogger("specray.router.sessions").info("quiet")
        logging.getLogger("specray.router.sessions").warning("loud")

    assert (tmp_path / "first").read_text() == "quiet\nloud\n"
    assert (tmp_path / "second").read_text() == "loud\n"


@pytest.mark.parametrize("is_json", [True, False])
def test_the_engine_logs_beside_its_replica_in_the_same_form(
    serve_logger: logging.Logger, tmp_path: Path, is_json: bool
) -> None:
    formatter = JSONFormatter() if is_json else logging.Formatter()
    configure(serve_logger, tmp_path / "replica_specray_target_x_abc.log", formatter)
    serve_logger.setLevel(logging.WARNING)
    found = engine_log()

    assert found is not None
    assert found.path == str(tmp_path / "engine_specray_target_x_abc.log")
    assert (found.is_json, found.level) == (is_json, logging.WARNING)


def test_outside_a_replica_the_engine_has_no_file() -> None:
    assert engine_log() is None
