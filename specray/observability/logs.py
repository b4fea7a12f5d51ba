"""Logs of processes that Ray Serve knows nothing of, in the form that Serve's own have."""

import copy
import json
import logging
from logging.handlers import RotatingFileHandler

from specray.config import LogFileConfig
from specray.types import MAX_NAME

_MAX_BYTES = 100 << 20  # Ray's own limits
_NUM_OLD_FILES = 5
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_TEXT = "%(levelname)s %(asctime)s engine %(request_id)s-- %(message)s"


def write_to(file: LogFileConfig) -> None:
    """Send the lines of all of specray to a file, from now on and in this process.

    Raises:
        OSError: the file can't be opened.
    """
    handler = RotatingFileHandler(file.path, maxBytes=_MAX_BYTES, backupCount=_NUM_OLD_FILES)
    handler.setFormatter(JsonFormatter() if file.is_json else TextFormatter(_TEXT))
    logger = logging.getLogger("specray")
    logger.handlers[:] = [handler]
    logger.setLevel(file.level)
    logger.propagate = False


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the keys that Serve writes and whatever `extra` carries."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {
            "asctime": self.formatTime(record),
            "levelname": record.levelname,
            "message": record.getMessage(),
            "filename": record.filename,
            "lineno": record.lineno,
            "process": record.process,
            "component_name": "engine",
        }
        if record.exc_info:
            line["exc_text"] = self.formatException(record.exc_info)
        extra = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return json.dumps(line | extra, default=str)


class TextFormatter(logging.Formatter):
    """A line of text as Serve writes it, with the request id if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        request_id = getattr(record, "request_id", "")
        named = copy.copy(record)  # it is formatted more than once
        named.request_id = f"{request_id} " if request_id else ""
        return super().format(named)


def printable(name: object) -> str:
    """A name that came from outside, fit for a log line and for the wire: short and of one line."""
    if not isinstance(name, str):
        return ""
    return "".join(c for c in name[:MAX_NAME] if c.isascii() and c.isprintable())
