import json
from pathlib import Path
from typing import Any

import pytest

from specray.distill.prompt_files import read_prompts
from specray.distill.work import read_json_lines, write_json_lines
from specray.errors import InvalidConfigError


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_plain_prompts(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "Why?", "id": 7})

    assert list(read_prompts(path)) == [[{"role": "user", "content": "Why?"}]]


def test_sharegpt_conversations_up_to_the_first_answer(tmp_path: Path) -> None:
    turns = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Why?"},
        {"from": "gpt", "value": "Because."},
        {"from": "human", "value": "And?"},
    ]

    messages = list(read_prompts(write(tmp_path, {"conversations": turns})))

    assert messages == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    ]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_line_separators_within_a_text_end_no_line(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "prompts.jsonl"
    write_json_lines(path, [{"prompt": f"a{separator}b"}, {"prompt": "c"}])
    assert [value["prompt"] for _, value in read_json_lines(path)] == [f"a{separator}b", "c"]


def test_empty_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('\n{"prompt": "a"}\n\n')

    assert len(list(read_prompts(path))) == 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"text": "?"}, r"line 2: needs `prompt` .* or `conversations`.*\['text'\]"),
        ({"prompt": 3}, "line 2: needs `prompt`"),
        ({"prompt": " "}, "line 2: needs `prompt`"),
        (["Why?"], "line 2: not an object but list"),
        ({"conversations": "Why?"}, "line 2: `conversations` is not a list"),
        (
            {"conversations": [{"from": "bot", "value": ""}]},
            r"line 2: `conversations\[0\]` needs `from`",
        ),
        ({"conversations": [{"from": [], "value": ""}]}, r"`conversations\[0\]` needs `from`"),
        ({"conversations": [{"from": "human"}]}, r"line 2: `conversations\[0\]` needs"),
        ({"conversations": [{"from": "gpt", "value": "Hi"}]}, "line 2: .* has no turn of `human`"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: Any, complaint: str) -> None:
    path = write(tmp_path, {"prompt": "fine"}, line)

    with pytest.raises(InvalidConfigError, match=complaint):
        list(read_prompts(path))


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": \n')

    with pytest.raises(InvalidConfigError, match="line 2: no JSON"):
        list(read_prompts(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="nowhere.jsonl"):
        list(read_prompts(tmp_path / "nowhere.jsonl"))
