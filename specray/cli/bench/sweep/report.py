"""The sweep as tables and as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specray.cli.bench.sweep.plan import SweepPlan
from specray.cli.bench.sweep.runner import Cell
from specray.cli.bench.sweep.stats import Comparison, Ratio, Row, compare, rows, verdicts
from specray.cli.output import columns

_HEADINGS = ("QPS", "system", "tok/s", "reader tok/s", "TTFT p50 ms", "p95", "p99")
_MORE = ("TPOT p50 ms", "p95", "p99", "depth", "accepted")


def write_sweep(
    path: Path, meta: Mapping[str, str], plan: SweepPlan, cells: Sequence[Cell]
) -> None:
    """Writes everything but single tokens, making the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "meta": meta,
        "plan": asdict(plan),
        "rows": [_rounded(asdict(row)) for row in rows(plan, cells)],
        "ours": [_rounded(asdict(entry)) for entry in compare(plan, cells)],
        "verdicts": [_rounded(asdict(entry)) for entry in verdicts(plan, cells)],
        "cells": [_rounded(_cell(cell)) for cell in cells],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def format_sweep(plan: SweepPlan, cells: Sequence[Cell]) -> str:
    """Each system at each load; then ours against the others."""
    ours = [_comparison(entry) for entry in compare(plan, cells)]
    heading = ("measure", "QPS", "to off", "best fixed", "to it")
    parts = [
        columns([_HEADINGS + _MORE, *map(_line, rows(plan, cells))]),
        "ours, paired by round",
        columns([heading, *ours]),
    ]
    parts += [
        f"{verdict.measure}: {verdict.to_best_single_depth:.3f} of the best single depth over the "
        f"sweep ({verdict.best_single_depth}), at worst {verdict.least_to_off:.3f} of off and "
        f"{verdict.least_to_best_fixed:.3f} of the best fixed choice"
        for verdict in verdicts(plan, cells)
    ]
    return "\n\n".join(parts)


def _line(row: Row) -> tuple[str, ...]:
    return (
        row.load,
        row.system,
        f"{row.tokens_per_s:.1f}",
        f"{row.reader_tokens_per_s:.1f}",
        *(f"{1e3 * value:.0f}" for value in row.ttft_s),
        *(f"{1e3 * value:.1f}" for value in row.tpot_s),
        _or_dash(row.depth),
        _or_dash(row.acceptance_rate),
    )


def _comparison(entry: Comparison) -> tuple[str, ...]:
    best = _ratio(entry.to_best_fixed)
    return entry.measure, entry.load, _ratio(entry.to_off), entry.best_fixed, best


def _ratio(value: Ratio) -> str:
    if value.low is None or value.high is None:
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "round": cell.round_index,
        "load": cell.load,
        "system": cell.system,
        "tokens_per_s": cell.tokens_per_s,
        "depth": cell.depth,
        "acceptance_rate": cell.acceptance_rate,
        "answers": [
            {"asked_s": a.asked_s, "ttft_s": a.ttft_s, "tpot_s": a.tpot_s, "ended_s": a.ended_s}
            for a in cell.answers
        ],
        "moments": [asdict(moment) for moment in cell.moments],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
