import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.load.prompts import BUILT_IN, read_prompts

SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello"},
        {"from": "human", "value": "Bye"},
    ],
}


@pytest.mark.parametrize(
    ("entry", "messages"),
    [
        ({"prompt": "Hi"}, [("user", "Hi")]),
        ({"messages": [{"role": "user", "content": "Hi"}]}, [("user", "Hi")]),
        (SHAREGPT, [("system", "Be brief."), ("user", "Hi")]),
    ],
)
@pytest.mark.parametrize("as_list", [True, False])
def test_formats(tmp_path: Path, entry: Any, messages: list[Any], as_list: bool) -> None:
    file = tmp_path / "prompts"
    file.write_text(json.dumps([entry, entry]) if as_list else f"{json.dumps(entry)}\n\n" * 2)
    expected = [{"role": role, "content": content} for role, content in messages]
    assert read_prompts(file) == [expected, expected]


def test_the_built_in_set() -> None:
    assert len(read_prompts(BUILT_IN)) >= 30


def test_a_conversation_in_which_no_person_speaks_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps([{"conversations": [{"from": "gpt", "value": "Hello"}]}]))
    with pytest.raises(ValueError, match=r"prompts\.json: no prompts"):
        read_prompts(file)


def test_a_separator_within_a_text_ends_no_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    texts = ["one\u2028two", "three\u0085four"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    file.write_text("\r\n".join(lines), encoding="utf-8")

    assert [prompt[0]["content"] for prompt in read_prompts(file)] == texts
