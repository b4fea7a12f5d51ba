"""Timelines as a target and a draft would have written them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

TARGET, DRAFT = 1, 2
"""Their processes."""


def mark(name: str, ts: float, **facts: Any) -> Event:
    return {"tid": 0, "name": name, "ph": "i", "ts": ts, "args": facts}


def span(name: str, ts: float, dur: float, **facts: Any) -> Event:
    return mark(name, ts, **facts) | {"ph": "X", "dur": dur}


def named(role: str) -> Event:
    return {"tid": 0, "name": "process_name", "ph": "M", "args": {"name": role}}


def write(folder: Path, target: Sequence[Event] = (), draft: Sequence[Event] = ()) -> None:
    for role, pid, events in (("target", TARGET, target), ("draft", DRAFT, draft)):
        lines = [json.dumps({"pid": pid} | event) + "\n" for event in events]
        (folder / f"{role}-{pid}.jsonl").write_text("".join(lines))


def arrived(ts: float, session: int, request: str, vllm: str = "vllms-own") -> Event:
    """A request, at the target."""
    return mark("request arrived", ts, session=session, request=request, vllm_request=vllm)


def sent(ts: float, session: int, at: int, added: int, sent_ns: int, depth: int = 3) -> Event:
    """A commit, by the target."""
    facts = {"at": at, "added": added, "depth": depth, "sent_ns": sent_ns}
    return mark("commit sent", ts, session=session, **facts)


def came(ts: float, *commits: tuple[int | None, int, int, int], dur: float = 10) -> Event:
    """Commits at the draft: each one's session there, length, tokens and time of departure."""
    names = ("sessions", "at", "added", "sent_ns")
    facts = dict(zip(names, map(list, zip(*commits, strict=True)), strict=True))
    return span("commit arrived", ts, dur, **facts)
