"""The user's own prompts: JSON lines in one of the formats that are about."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specray.distill.work import read_json_lines
from specray.errors import InvalidConfigError

_ROLES = {"human": "user", "user": "user", "system": "system", "gpt": "assistant",
          "assistant": "assistant"}  # fmt: skip


def read_prompts(path: Path) -> Iterator[list[dict[str, str]]]:
    """The messages before the assistant's first answer, for each line of a file.

    A line is `{"prompt": "..."}` or ShareGPT's `{"conversations": [{"from": "human", "value":
    "..."}, ...]}`.

    Raises:
        InvalidConfigError: a line is neither; the message names file, line and field.
    """
    for number, value in read_json_lines(path):
        where = f"--prompts {path}, line {number}"
        if not isinstance(value, dict):
            raise InvalidConfigError(f"{where}: not an object but {type(value).__name__}")
        if "conversations" in value:
            yield _from_conversation(value["conversations"], where)
        elif isinstance(value.get("prompt"), str) and value["prompt"].strip():
            yield [{"role": "user", "content": value["prompt"]}]
        else:
            raise InvalidConfigError(
                f"{where}: needs `prompt` (a text) or `conversations` (ShareGPT); it has "
                f"{sorted(value)}"
            )


def _from_conversation(turns: Any, where: str) -> list[dict[str, str]]:
    if not isinstance(turns, list):
        raise InvalidConfigError(f"{where}: `conversations` is not a list")
    messages: list[dict[str, str]] = []
    for number, turn in enumerate(turns):
        role = _role(turn)
        if role is None or not isinstance(turn.get("value"), str):
            raise InvalidConfigError(
                f"{where}: `conversations[{number}]` needs `from` (one of {sorted(_ROLES)}) and "
                "`value` (a text)"
            )
        if role == "assistant":
            break
        messages.append({"role": role, "content": turn["value"]})
    if not any(message["role"] == "user" for message in messages):
        raise InvalidConfigError(f"{where}: `conversations` has no turn of `human` at its start")
    return messages


def _role(turn: Any) -> str | None:
    """Whose turn it is; None if that can't be told."""
    name = turn.get("from") if isinstance(turn, dict) else None
    return _ROLES.get(name) if isinstance(name, str) else None
