"""Prompts from a file; nothing here counts tokens."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Message = dict[str, str]

BUILT_IN = Path(__file__).parents[2] / "specray" / "cli" / "bench" / "prompts"
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "system": "system"}


def read_prompts(path: Path) -> list[list[Message]]:
    """The messages of each prompt in a file, or in all `*.jsonl` of a folder.

    One JSON object a line, or one list: `{"prompt": ...}`, `{"messages": [...]}`, or ShareGPT's
    `{"conversations": [{"from": "human", "value": ...}, ...]}`, of which the first turn is asked.

    Raises:
        ValueError: naming the file, if it holds none of them.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    prompts = [
        messages for file in files for entry in _entries(file) if (messages := _messages(entry))
    ]
    if not prompts:
        raise ValueError(
            f"{path}: no prompts; expected JSON with prompt, messages or conversations"
        )
    return prompts


def _entries(file: Path) -> Iterable[Any]:
    text = file.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        return json.loads(text)
    # Not `splitlines`: a text may hold separators that JSON does not escape, such as U+2028.
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _messages(entry: Any) -> list[Message]:
    if "prompt" in entry:
        return [{"role": "user", "content": entry["prompt"]}]
    return entry.get("messages") or list(_first_turn(entry.get("conversations") or ()))


def _first_turn(turns: Iterable[Any]) -> Iterator[Message]:
    """All up to the first thing that a person said; nothing if a conversation has none."""
    before = []
    for turn in turns:
        role = _ROLES.get(turn.get("from"))
        if role == "user":
            yield from before
            yield {"role": "user", "content": turn["value"]}
            return
        if role == "system":
            before.append({"role": "system", "content": turn["value"]})
