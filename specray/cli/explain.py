"""`specray explain [URL]`: what a running service knows and has decided, as tables."""

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from specray.cli.output import columns, say
from specray.errors import SpecrayError

_URL = "http://127.0.0.1:8000"
_TIMEOUT_S = 10.0

_COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "target": (  # heading, key of the report, format
        ("pool", "deployment", "s"),
        ("running", "num_running", ".1f"),
        ("waiting", "num_waiting", ".1f"),
        ("KV", "kv_usage", ".0%"),
        ("busy", "utilisation", ".0%"),
        ("req/s", "requests_per_s", ".2f"),
        ("tok/s", "tokens_per_s", ".1f"),
        ("step ms", "step_s", "ms"),
        ("TTFT ms", "ttft_s", "ms"),
        ("TPOT ms", "tpot_s", "ms"),
        ("depth", "depth", ".2f"),
        ("accepted", "acceptance", ".0%"),
        ("asked/s", "asked_per_s", ".1f"),
        ("late", "late_rate", ".0%"),
        ("missed", "miss_rate", ".0%"),
        ("waits", "wait_share", ".0%"),
        ("gain*", "gain", ".2f"),
        ("FLOP/B", "intensity", ".1f"),
        ("ridge", "ridge", ".1f"),
        ("tenants", "tenants", "rates"),  # by direct streaming; else the routers know
    ),
    "draft": (
        ("pool", "deployment", "s"),
        ("sessions", "num_sessions", "d"),
        ("busy", "utilisation", ".0%"),
        ("answering", "needed", ".0%"),
        ("answers/s", "answers_per_s", ".1f"),
        ("tokens", "tokens_per_answer", ".2f"),
        ("queue ms", "queue_s", "ms"),
        ("batch ms", "answer_fixed_s", "ms"),
        ("+ each", "answer_each_s", "ms"),
    ),
    "router": (("req/s", "requests_per_s", ".2f"), ("tenants", "tenants", "rates")),
}

_NOT_KNOWN_AT_ZERO = {"gain", "intensity", "ridge"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `specray explain`."""
    parser.add_argument("url", nargs="?", default=_URL, help=f"where the service listens ({_URL})")
    parser.add_argument("--json", action="store_true", help="print what the service answers")


def run(args: argparse.Namespace) -> int:
    """Ask and print.

    Raises:
        SpecrayError: the service does not answer, or not with this.
    """
    known = _ask(args.url.rstrip("/").removesuffix("/v1"))
    if args.json:
        say(json.dumps(known, indent=2))
        return 0
    for line in describe(known):
        say(line)
    return 0


def describe(known: dict[str, Any]) -> list[str]:
    """The lines that people read."""
    policy, objective = known["policy"], known["objective"]
    lines = [
        f"objective {objective['goal']}, ceilings "
        f"{'hold' if objective['is_limiting'] else 'are advice'}; "
        f"policy {'on' if policy['is_enabled'] else 'off'}, at most {policy['max_depth']} deep, "
        f"by {_rule(policy['depth_rule'])}" + ("; frozen by hand" if known["is_frozen"] else "")
    ]
    if not known["is_complete"]:
        lines.append("the controller has just started and waits to hear of everyone")
    for role, shown in _COLUMNS.items():
        reports = [m for m in known["members"] if m["role"] == role]
        if reports:
            rows = [[m["address"], *(_cell(m["report"], c) for c in shown)] for m in reports]
            lines += ["", *_table([f"{role}s", *(heading for heading, _, _ in shown)], rows)]
    lines += ["", "* of speculation, if no proposal had to be waited for", ""]
    lines += _table(
        ["decision", "now", "wanted", "why"],
        [
            [d["subject"], str(d["before"]), str(d["value"]), d["reason"]]
            for d in known["decisions"]
        ],
    )
    for decision in known["decisions"]:
        if decision["inputs"]:
            inputs = ", ".join(f"{name} {value:.4g}" for name, value in decision["inputs"])
            lines.append(f"  {decision['subject']}: {inputs}")
    if known["changes"]:
        lines += ["", *_table(["changed", "decision", "to", "why"], _changes(known["changes"]))]
    return lines


def _rule(rule: dict[str, Any]) -> str:
    """Its name, and what it goes by."""
    settings = ", ".join(f"{name} {value}" for name, value in rule.items() if name != "name")
    return f"{rule['name']} ({settings})" if settings else str(rule["name"])


def _ask(url: str) -> dict[str, Any]:
    try:
        reply = httpx.get(f"{url}/speculation", timeout=_TIMEOUT_S)
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise SpecrayError(
            f"{url}/speculation: {error}; does the service run there, with router.ui?"
        ) from None
    return answer


def _cell(report: dict[str, Any], column: tuple[str, str, str]) -> str:
    _, key, form = column
    value = report[key]
    if value is None or (key in _NOT_KNOWN_AT_ZERO and not value):
        return "-"
    if form == "ms":
        return f"{1e3 * value:.1f}"
    if form == "rates":
        return ", ".join(f"{name or '(none)'} {rate:.2f}" for name, rate in value) or "-"
    return f"{value:{form}}"


def _changes(changes: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        [f"{c['age_s']:.0f} s ago", c["subject"], str(c["value"]), c["reason"]] for c in changes
    ]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return columns([headings, *rows], is_left=True).split("\n")
