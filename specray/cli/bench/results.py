"""The results of a comparison: one file that grows piece by piece, so that a kill costs one."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specray.cli.bench.plan import Cell
from specray.errors import InvalidConfigError

_SAME_FOR_ALL = {
    "config": "of another config file, or of this one before it changed",
    "commit": "of another commit",
    "machine": "from another machine",
}
SEARCH_ROUND = 0
"""The round in which settings are tried; the others are numbered from 1."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a system is started, where it does not find that out for itself."""

    depth: int | None = None  # `num_speculative_tokens`
    num_threads: int | None = None  # that compute the model on a CPU

    def __str__(self) -> str:
        words = [
            f"{name} {value}"
            for name, value in (("depth", self.depth), ("threads", self.num_threads))
            if value is not None
        ]
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a speed was measured under, besides the system's own nature."""

    cell: Cell
    setting: Setting = Setting()
    rtt_ms: float = 0.0  # simulated, between router and draft
    draft_share: float = 0.0  # simulated: what a proposal takes at least, in verification steps


@dataclass(frozen=True, slots=True)
class Measurement:
    """One speed."""

    system: str
    round_number: int
    condition: Condition
    tokens_per_s: float
    measured_at: str


def measured(system: str, round_number: int, condition: Condition, speed: float) -> Measurement:
    """A speed in tokens per second, measured just now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Measurement(system, round_number, condition, round(speed, 2), now)


class Results:
    """What has been measured so far, and which systems failed; written after every change."""

    def __init__(self, path: Path | None, kind: str, meta: Mapping[str, str]) -> None:
        """Reads what the file holds already.

        Args:
            path: the file; None keeps the results in memory only.
            kind: what is compared; results of different kinds don't mix.
            meta: where, when, by which command and of which config file this run measures.

        Raises:
            InvalidConfigError: the file is no JSON, of another kind, config file or commit, or from
                another machine: ratios between those would say nothing.
        """
        self._path = path
        self._kind = kind
        self._runs: list[dict[str, str]] = []
        self.measurements: list[Measurement] = []
        self.failures: dict[str, str] = {}  # system -> why
        self._summary: Sequence[Mapping[str, Any]] = ()
        if path is not None and path.exists():
            self._read(path, meta)
        self._runs.append(dict(meta))

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Takes note of a piece."""
        self.measurements += measurements
        self._write()

    def fail(self, system: str, reason: str) -> None:
        """Takes note of why a system can't be measured."""
        self.failures[system] = reason
        self._write()

    def conclude(self, summary: Sequence[Mapping[str, Any]]) -> None:
        """Takes what the measurements come to: medians and ratios, for who reads the file."""
        self._summary = summary
        if self.measurements:
            self._write()

    def reason(self, system: str) -> str:
        """Why a system failed, in a line: of a log, the last error in it."""
        lines = self.failures[system].splitlines()
        errors = [line for line in lines if re.search(r"\b\w+(Error|Exception): ", line)]
        return (errors or lines)[-1 if errors else 0].strip()

    def forgive(self, system: str) -> None:
        """Gives a failed system another try."""
        self.failures.pop(system, None)

    def speeds(self, system: str, condition: Condition) -> dict[int, float]:
        """Tokens per second by round."""
        return {
            m.round_number: m.tokens_per_s
            for m in self.measurements
            if m.system == system and m.condition == condition
        }

    def conditions(self, system: str) -> list[Condition]:
        """All that a system was measured under, in order, but for the search."""
        return list(
            dict.fromkeys(
                m.condition
                for m in self.measurements
                if m.system == system and m.round_number != SEARCH_ROUND
            )
        )

    def has(self, system: str, round_number: int, conditions: Sequence[Condition]) -> bool:
        """Whether all of these were measured in that round."""
        return all(round_number in self.speeds(system, condition) for condition in conditions)

    def _read(self, path: Path, meta: Mapping[str, str]) -> None:
        try:
            content = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise InvalidConfigError(f"{path}: no JSON ({error}); name another file") from None
        if not isinstance(content, dict) or content.get("kind") != self._kind:
            raise InvalidConfigError(
                f"{path} does not hold results of {self._kind}; name another file with --json"
            )
        for name, whose in _SAME_FOR_ALL.items():
            if {run.get(name) for run in content["runs"]} - {None, meta.get(name)}:
                raise InvalidConfigError(
                    f"{path} holds results {whose}; name another file with --json"
                )
        self._runs = content["runs"]
        self.failures = content["failures"]
        self._summary = content.get("summary", ())
        self.measurements = [_parse(row) for row in content["measurements"]]

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "kind": self._kind,
            "runs": self._runs,
            "failures": self.failures,
            "summary": list(self._summary),
            "measurements": [_flat(measurement) for measurement in self.measurements],
        }
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        partial.replace(self._path)


def _flat(measurement: Measurement) -> dict[str, Any]:
    row = asdict(measurement)
    condition = row.pop("condition")
    return row | condition.pop("cell") | condition.pop("setting") | condition


def _parse(row: dict[str, Any]) -> Measurement:
    values = dict(row)
    cell = Cell(**{field.name: values.pop(field.name) for field in fields(Cell)})
    setting = Setting(**{field.name: values.pop(field.name) for field in fields(Setting)})
    condition = Condition(cell, setting, values.pop("rtt_ms"), values.pop("draft_share"))
    return Measurement(condition=condition, **values)
