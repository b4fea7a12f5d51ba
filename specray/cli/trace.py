"""`specray trace`: from the files of `observability.timeline` to a trace, a picture, a diagram."""

import argparse
import json
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from specray.cli.one_request import only
from specray.cli.output import say
from specray.cli.trace_svg import is_its_own, picture
from specray.cli.travels import PROPOSALS, Event, session_of, travels
from specray.errors import InvalidConfigError

_ARROWS = {
    "commit sent": "target->>draft",
    "outcome buffered": "draft->>target",
    "answer buffered": "draft->>target",
}
_BUFFER_TID = 2**31 - 1  # of a target's process; no thread has it
_NOTES = {"verify": "target", "draft ahead": "draft", "answer": "draft"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `specray trace`."""
    parser.add_argument("folder", type=Path, help="that of `observability.timeline`")
    parser.add_argument(
        "--request",
        metavar="ID",
        help="only what concerns this request: the x-request-id or the id of its response, or the "
        "number of its session at the target",
    )
    parser.add_argument("--out", type=Path, help="a trace for chrome://tracing or ui.perfetto.dev")
    parser.add_argument(
        "--mermaid", type=int, metavar="N", help="print a sequence diagram of the last N commits"
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="a picture of a few steps in a row"
    )
    parser.add_argument("--commits", type=int, default=3, help="how many the picture shows (3)")


def run(args: argparse.Namespace) -> int:
    """Writes the trace, prints the diagram, or says what there is.

    Returns:
        0.

    Raises:
        InvalidConfigError: There is no timeline in the folder, or no such request in it, it is
            broken, or too short for a picture.
    """
    if args.commits < 1:
        raise InvalidConfigError(f"--commits is {args.commits}; give 1 or more")
    if args.mermaid is not None and args.mermaid < 1:
        raise InvalidConfigError(f"--mermaid is {args.mermaid}; give 1 or more")
    for file in filter(None, (args.out, args.svg)):
        if not file.parent.is_dir():
            raise InvalidConfigError(f"{file}: there is no folder {file.parent}")
    events = read(args.folder)
    if args.request is not None:
        events = only(args.request, events, args.folder)
    if args.out:
        tracks = [*in_tracks(events), *wire(events)]
        args.out.write_text(json.dumps({"traceEvents": tracks, "displayTimeUnit": "ms"}))
    if args.mermaid:
        say("\n".join(diagram(events, args.mermaid)))
    if args.svg:
        args.svg.write_text(_picture(events, args.commits, args.folder))
    if not args.out and not args.mermaid and not args.svg:
        say(f"{len(events)} events; name a file with --out or --svg, or --mermaid 3")
    return 0


def read(folder: Path) -> list[Event]:
    """The events of all processes, in the order of time."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise InvalidConfigError(
            f"{folder} holds no timeline; set observability.timeline to it and serve some requests"
        )
    events = [event for file in files for event in _events(file)]
    return sorted(events, key=lambda event: event.get("ts", 0.0))


def in_tracks(events: Sequence[Event]) -> Iterator[Event]:
    """The events, a target's buffer in a track of its own below its steps.

    So is what waits at a draft for the end of a pass: in a track of the passes Perfetto would drop
    it, as it does not lie within one.
    """
    buffers: set[int] = set()
    for number, event in enumerate(events):
        if event["name"] == "commit arrived":
            yield from _loose(event | {"cat": "inbox", "id": number}, event["ts"] + event["dur"])
            continue
        if event["name"] not in PROPOSALS:
            yield event
            continue
        pid = event["pid"]
        if pid not in buffers:
            buffers.add(pid)
            yield _named("thread_name", "steps", pid, 0)
            yield _named("thread_name", "buffer", pid, _BUFFER_TID)
        yield event | {"tid": _BUFFER_TID}


def wire(events: Sequence[Event]) -> Iterator[Event]:
    """Commits and proposals on their way, as spans that may overlap, of a process of their own."""
    pid = 1 + max((event["pid"] for event in events), default=0)
    for number, travel in enumerate(travels(events)):
        if number == 0:
            yield _named("process_name", "wire", pid, 0)
        target, session = travel.session
        facts = {"target": target, "session": session, "at": travel.at}
        span = {"name": travel.kind, "cat": "wire", "id": number, "pid": pid, "tid": 0}
        yield from _loose(span | {"ts": travel.left_us, "args": facts}, travel.arrived_us)


def _loose(span: Event, until_us: float) -> Iterator[Event]:
    """A span that others may overlap; it has a category, and a number there."""
    named = {key: span[key] for key in ("name", "cat", "id", "pid", "tid")}
    yield named | {"ph": "b", "ts": span["ts"], "args": span["args"]}
    yield named | {"ph": "e", "ts": until_us}


def _named(what: str, name: str, pid: int, tid: int) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _picture(events: Sequence[Event], num_commits: int, folder: Path) -> str:
    """Of the commits in a row between which most was drafted and verified, the fastest."""
    commits = [event for event in events if event["name"] == "commit sent"]
    rows = [commits[i : i + num_commits + 1] for i in range(len(commits) - num_commits)]
    rows = [row for row in rows if _is_one_request(row)]
    if not rows:
        raise InvalidConfigError(
            f"{folder} has no {num_commits} commits in a row of one request that asked for "
            "proposals; name one by --request, serve a longer one, or show fewer --commits"
        )
    came_us = [event["ts"] for event in events if event["name"] in PROPOSALS]
    used_us = [
        event["ts"]
        for event in events
        if event["name"] == "verify" and any(event["args"]["depths"]) and not is_its_own(event)
    ]

    def worth(row: Sequence[Event]) -> tuple[int, float]:
        return _num_steps(row, came_us) + _num_steps(row, used_us), _speed(row)

    row = max(rows, key=worth)
    return picture(events, row[0]["ts"], row[-1]["ts"])


def _num_steps(commits: Sequence[Event], times_us: Sequence[float]) -> int:
    """How many of the steps between the commits hold one of these times or more."""
    places = [bisect(times_us, commit["ts"]) for commit in commits]
    return sum(after > before for before, after in pairwise(places))


def _speed(commits: Sequence[Event]) -> float:
    num_tokens = sum(commit["args"]["added"] for commit in commits[1:])
    return num_tokens / max(1.0, commits[-1]["ts"] - commits[0]["ts"])


def _is_one_request(commits: Sequence[Event]) -> bool:
    """Whether each commit follows the one before, and asks for proposals."""
    facts = [commit["args"] for commit in commits]
    is_one = len({session_of(commit) for commit in commits}) == 1
    follow = (after["at"] == now["at"] + now["added"] for now, after in pairwise(facts))
    return is_one and all(follow) and all(fact["depth"] for fact in facts)


def _events(file: Path) -> Iterator[Event]:
    lines = file.read_text().split("\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last end is half a line
        try:
            yield json.loads(line)
        except ValueError as error:
            raise InvalidConfigError(f"{file}, line {number}: {error}; remove it") from error


def diagram(events: Sequence[Event], num_commits: int) -> Iterator[str]:
    """The last commits that asked for proposals, and what lay between them, in Mermaid's words.

    Of neighbouring events that are alike one line is made.
    """
    shown = _last_commits(events, num_commits)
    yield "sequenceDiagram"
    yield "    participant target"
    yield "    participant draft"
    begun_us = shown[0]["ts"] if shown else 0.0
    group: list[Event] = []
    for event, following in pairwise([*shown, {"name": ""}]):
        group.append(event)
        if event["name"] != following["name"]:
            yield f"    {_line(group, begun_us)}"
            group = []


def _last_commits(events: Sequence[Event], num: int) -> list[Event]:
    """The events from one commit to the `num`th after it, if that many in a row want proposals."""
    shown = [event for event in events if event["name"] in _ARROWS | _NOTES]
    commits = [i for i, event in enumerate(shown) if event["name"] == "commit sent"]
    for first in range(len(commits) - num - 1, -1, -1):
        chosen = commits[first : first + num + 1]
        if all(shown[i]["args"]["depth"] for i in chosen):
            return shown[chosen[0] : chosen[-1] + 1]
    return shown


def _line(group: Sequence[Event], begun_us: float) -> str:
    first, last = group[0], group[-1]
    name = first["name"]
    from_ms = (first["ts"] - begun_us) / 1e3
    to_ms = (last["ts"] + last.get("dur", 0.0) - begun_us) / 1e3
    when = f"{from_ms:.1f} ms" if to_ms - from_ms < 0.05 else f"{from_ms:.1f} to {to_ms:.1f} ms"
    times = f" x {len(group)}" if len(group) > 1 else ""
    if name in _ARROWS:
        return f"{_ARROWS[name]}: {when}: {name}{times}{_added(first)}"
    return f"Note over {_NOTES[name]}: {when}: {name}{times}{_added(first)}"


def _added(event: Event) -> str:
    facts = event["args"]
    if event["name"] == "verify":
        return f", depth {', '.join(map(str, facts['depths']))}"
    return f", {facts['added']} tokens" if "added" in facts else ""
