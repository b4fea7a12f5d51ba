"""What happened to requests and when, in each process, for whoever wants to look at it.

Off unless a folder is given. Each process appends to a file of its own there, one JSON object a
line in the form of Chrome's trace events; `specray trace` makes one trace of them. All times are
of the monotonic clock, which the processes of one machine share, and only they.

Events say whom they concern: `session` is the number of a session in the process that writes,
`sessions` are those of a batch, and lists beside these have a place for each. Targets and drafts
number sessions each for themselves; both ends of a commit note when it was sent (`sent_ns`), which
tells whose session is whose (`specray.cli.travels`).
"""

import json
import os
import time
from pathlib import Path
from typing import Any, Final, Protocol


class Timeline(Protocol):
    """Where events go."""

    is_on: bool

    def span(self, name: str, started_s: float, **facts: Any) -> None:
        """Something has taken from `started_s` (monotonic) until now."""
        ...

    def mark(self, name: str, **facts: Any) -> None:
        """Something happens now."""
        ...


class _Off:
    is_on = False

    def span(self, name: str, started_s: float, **facts: Any) -> None:
        """Nothing."""

    def mark(self, name: str, **facts: Any) -> None:
        """Nothing."""


class FileTimeline:
    """Appends to a file; a line is written at once, so that nothing is lost with the process."""

    is_on = True

    def __init__(self, folder: Path, role: str) -> None:
        """Makes the file; `role` is what the process is called in the trace."""
        folder.mkdir(parents=True, exist_ok=True)
        self._pid = os.getpid()
        self._file = (folder / f"{role}-{self._pid}.jsonl").open("a", buffering=1)
        self._write(name="process_name", ph="M", args={"name": role})

    def span(self, name: str, started_s: float, **facts: Any) -> None:
        """See `Timeline`."""
        lasted_us = (time.monotonic() - started_s) * 1e6
        self._write(name=name, ph="X", ts=started_s * 1e6, dur=lasted_us, args=facts)

    def mark(self, name: str, **facts: Any) -> None:
        """See `Timeline`."""
        self._write(name=name, ph="i", s="t", ts=time.monotonic() * 1e6, args=facts)

    def close(self) -> None:
        """Nothing may be written any more."""
        self._file.close()

    def _write(self, **event: Any) -> None:
        self._file.write(json.dumps({"pid": self._pid, "tid": 0} | event) + "\n")


OFF: Final[Timeline] = _Off()


def open_timeline(folder: str | None, role: str) -> Timeline:
    """A timeline in the folder, or none."""
    return OFF if folder is None else FileTimeline(Path(folder), role)
