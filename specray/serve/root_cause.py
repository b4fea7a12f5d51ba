"""Why an engine did not start: its own process says so, in its replica's output only."""

import re
from pathlib import Path

# vLLM's prefix of its processes' lines, then the end of a traceback.
_FAULT = re.compile(
    r"^\((?:EngineCore|Worker)[^)]*\) ERROR .*?\] (\w[\w.]*(?:Error|Exception): .+)$"
)
_MOST_CHARS = 500


def root_cause(log_folder: Path) -> str:
    """The latest fault of an engine's process, and the file that has the whole; empty for none.

    Args:
        log_folder: of a Ray session.
    """
    files = sorted(log_folder.glob("worker-*.out"), key=lambda file: file.stat().st_mtime)
    for file in reversed(files):
        found = [match[1] for line in _lines(file) if (match := _FAULT.match(line))]
        if found:
            return f"{found[-1][:_MOST_CHARS]} (the engine's output: {file})"
    return ""


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()
