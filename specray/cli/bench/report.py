"""What a measurement leaves behind: a JSON file and a table."""

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from specray.cli.bench.plan import Plan
from specray.cli.bench.runner import Row

_HEADINGS = ("workload", "at once", "temperature", "off tok/s", "specray tok/s", "ratio")
_GENERATION = {"family": "cpu family", "model": "model"}


def collect_meta(words: Sequence[str], program: str = "specray") -> dict[str, str]:
    """Where, when, from which commit and by which command it was measured.

    Args:
        words: of the command, after the program.
        program: what was run.
    """
    return {
        "commit": _commit(),
        "machine": _machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"{program} {shlex.join(words)}".rstrip(),
    }


def write_json(path: Path, meta: dict[str, str], plan: Plan, rows: Sequence[Row]) -> None:
    """Writes `{"meta": ..., "plan": ..., "rows": [...]}`, making the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = {name: value for name, value in asdict(plan).items() if name != "cells"}
    content = {"meta": meta, "plan": lengths, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def format_table(rows: Sequence[Row]) -> str:
    """One line per condition, off beside on."""
    off = {_condition(row): row for row in rows if row.system == "off"}
    lines = [_HEADINGS] + [
        (
            row.workload,
            str(row.concurrency),
            f"{row.temperature:g}",
            f"{off[_condition(row)].tokens_per_s:.1f}",
            f"{row.tokens_per_s:.1f}",
            f"{row.ratio_to_off:.2f}",
        )
        for row in rows
        if row.system == "specray"
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_align(line, widths) for line in lines)


def _align(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
    return "  ".join([first.strip().ljust(widths[0]), *others])


def _condition(row: Row) -> tuple[str, int, float]:
    return row.workload, row.concurrency, row.temperature


def _commit() -> str:
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()


def _machine() -> str:
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return platform.machine()
    facts: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    if "model name" not in facts:
        return platform.machine()
    # Virtual machines hide what is sold under which name, but not the generation.
    numbers = [f"{n} {facts[key]}" for n, key in _GENERATION.items() if key in facts]
    return facts["model name"] + (f" ({', '.join(numbers)})" if numbers else "")
