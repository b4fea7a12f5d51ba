"""specray's lines in Serve's log files, in the encoding and at the level that Serve was given."""

import logging
from logging.handlers import MemoryHandler
from pathlib import Path

from ray._common.formatters import JSONFormatter

from specray.config import LogFileConfig

_SERVE = "ray.serve"  # its handlers are replaced when settings change, so we keep no copy of them


def join_serve() -> None:
    """In a replica: everything that specray logs goes where Serve's own lines go."""
    logging.getLogger("specray").parent = logging.getLogger(_SERVE)


def engine_log() -> LogFileConfig | None:
    """Where the process of this replica's engine may log: beside the replica, in the same form.

    None outside a replica.
    """
    serve = logging.getLogger(_SERVE)
    for handler in serve.handlers:
        target = handler.target if isinstance(handler, MemoryHandler) else None
        if isinstance(target, logging.FileHandler):
            path = Path(target.baseFilename)
            name = path.name.replace("replica_", "engine_", 1)
            is_json = isinstance(target.formatter, JSONFormatter)
            return LogFileConfig(
                path=str(path.with_name(name)), is_json=is_json, level=serve.getEffectiveLevel()
            )
    return None
