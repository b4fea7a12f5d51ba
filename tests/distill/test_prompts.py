import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specray.distill.engines import load_template
from specray.distill.generation import Completion, SampleRequest
from specray.distill.prompts import (
    HELD_OUT,
    TRAIN,
    Prompt,
    PromptPlan,
    is_usable,
    make_prompts,
)
from specray.distill.tasks import OPENINGS
from specray.distill.template import read_template
from specray.distill.texts import find_passages
from specray.distill.work import WorkFolder, write_json_lines
from specray.errors import InvalidConfigError
from tests.distill.conftest import few_texts, make_tokenizer

PLAIN_TEMPLATE = "{% for m in messages %}{{ '(user) ' + m['content'] + ' (bot)' }}{% endfor %}"


def test_the_template_is_taken_apart() -> None:
    tokenizer = make_tokenizer()

    template = read_template(tokenizer)

    assert tokenizer.decode(template.user_start) == "<s>user|"
    assert template.end_ids == {tokenizer.eos_token_id}
    text = tokenizer.decode(template.encode([{"role": "user", "content": "Hi"}]))
    assert text == "<s>user|Hi</s><s>assistant|"


def test_a_plain_token_behind_the_users_words_ends_no_answer() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = PLAIN_TEMPLATE

    template = read_template(tokenizer)

    assert template.end_ids == {tokenizer.eos_token_id}
    assert template.user_end == "(bot)"


@pytest.mark.parametrize("ids", [[0, 5], 5])
def test_the_generation_configs_ends_are_ends(target: Path, tmp_path: Path, ids: object) -> None:
    folder = tmp_path / "target"
    shutil.copytree(target, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))

    assert load_template(str(folder)).end_ids == {0, 5}


def test_a_target_without_a_generation_config_has_its_tokenizers_end(
    target: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "target"
    shutil.copytree(target, folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    assert load_template(str(folder)).end_ids == {0}


class _Talker:
    """Writes a user's words and goes on as the assistant, without an end."""

    def __init__(self, text: str, num_at_once: int = 300) -> None:
        self._text = text
        self.num_at_once = num_at_once
        self.num_calls = 0

    def generate(self, requests: list[SampleRequest], top_k: int) -> list[Completion]:
        self.num_calls += 1
        none = np.zeros((0, 0))
        encode = make_tokenizer().encode
        texts = [self._text.format(request.seed) for request in requests]
        return [Completion(np.array(encode(text), np.int32), none, none) for text in texts]


def test_a_written_prompt_is_cut_where_the_assistant_begins(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = PLAIN_TEMPLATE
    talker = _Talker("What is number {}? (bot) Nothing")

    prompts = make_prompts(
        PromptPlan(24, 2), WorkFolder(tmp_path), read_template(tokenizer), talker, few_texts
    )

    words = [prompt.messages[-1]["content"] for prompt in prompts]
    assert any(text.startswith("What is number") for text in words)
    assert not any("(bot)" in text for text in words)


def test_files_of_prompts_are_written_together(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = PLAIN_TEMPLATE
    plan, template = PromptPlan(2400, 2), read_template(tokenizer)
    works = WorkFolder(tmp_path / "one"), WorkFolder(tmp_path / "three")
    talkers = [_Talker("What is number {}? (bot) No", num_at_once) for num_at_once in (1, 768)]

    one, three = (
        make_prompts(plan, work, template, talker, few_texts)
        for work, talker in zip(works, talkers, strict=True)
    )

    assert one == three
    chats = sorted(path.name for path in works[1].synthetic.glob("train-chat-*"))
    assert chats == [f"train-chat-{i:05d}-of-{256 if i < 4 else 176}.jsonl" for i in range(5)]
    assert [talker.num_calls for talker in talkers] == [12, 7]


def test_files_of_prompts_that_are_missing_are_written_as_they_were(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = PLAIN_TEMPLATE
    plan, template, work = PromptPlan(2400, 2), read_template(tokenizer), WorkFolder(tmp_path)
    words = "What is number {}? (bot) No"
    made = make_prompts(plan, work, template, _Talker(words, 768), few_texts)
    for path in (work.prompts, *work.synthetic.glob("train-chat-0000[13]*")):
        path.unlink()
    talker = _Talker(words, 768)

    assert make_prompts(plan, work, template, talker, few_texts) == made
    assert talker.num_calls == 1
    for path in work.synthetic.glob("train-summarising-*"):  # two, whose openings begin anew
        assert json.loads(path.read_text().splitlines()[0]).startswith(OPENINGS["summarising"][0])


def users_prompts(folder: Path, file: Path, **changes: Any) -> list[Prompt]:
    """What becomes of a file of the user's."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = PLAIN_TEMPLATE
    plan = PromptPlan(0, **{"num_held_out": 4, "files": (file,), "only_files": True, **changes})
    talker = _Talker("What is number {}? (bot) Nothing")
    made = make_prompts(plan, WorkFolder(folder), read_template(tokenizer), talker, few_texts)
    return [prompt for prompt in made if prompt.kind == "user"]


def write_prompts(path: Path, texts: list[str]) -> Path:
    write_json_lines(path, [{"prompt": text} for text in texts])
    return path


def held_out_words(prompts: list[Prompt]) -> set[str]:
    return {p.messages[-1]["content"] for p in prompts if p.split == HELD_OUT}


@pytest.mark.parametrize(("count", "wanted"), [(7, 0), (8, 1), (31, 3), (100, 4)])
def test_a_share_of_the_users_prompts_is_held_out(tmp_path: Path, count: int, wanted: int) -> None:
    texts = [f"Why is {i} odd?" for i in range(count)]
    file = write_prompts(tmp_path / "mine.jsonl", [*texts, texts[0].upper()])

    prompts = users_prompts(tmp_path / "work", file)

    assert len(prompts) == count  # the same words count once
    assert len(held_out_words(prompts)) == wanted


def test_which_of_the_users_prompts_are_held_out_is_told_by_their_words(tmp_path: Path) -> None:
    texts = [f"Why is {i} odd?" for i in range(40)]
    file = write_prompts(tmp_path / "mine.jsonl", texts)
    turned = write_prompts(tmp_path / "turned.jsonl", texts[::-1])

    wanted = held_out_words(users_prompts(tmp_path / "a", file))

    assert held_out_words(users_prompts(tmp_path / "b", turned, seed=7)) == wanted


def test_prompts_that_were_made_stay_in_their_split(tmp_path: Path) -> None:
    """Earlier versions trained on all of the user's."""
    file = write_prompts(tmp_path / "mine.jsonl", [f"Why is {i} odd?" for i in range(40)])
    work = WorkFolder(tmp_path / "work")
    made = [replace(p, split=TRAIN) for p in users_prompts(work.path, file)]
    write_json_lines(work.prompts, map(asdict, made))

    assert users_prompts(work.path, file) == made


def test_a_file_without_prompts_is_named(tmp_path: Path) -> None:
    file = write_prompts(tmp_path / "mine.jsonl", [])

    with pytest.raises(InvalidConfigError, match=r"--prompts .*mine.jsonl: there is no prompt"):
        users_prompts(tmp_path / "work", file)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"files": (), "only_files": False}, "--num-prompts 0"),
        ({"num_held_out": 0}, "--num-held-out 0"),
    ],
)
def test_a_split_that_nothing_was_made_for_is_named(
    tmp_path: Path, changes: dict[str, Any], option: str
) -> None:
    file = write_prompts(tmp_path / "mine.jsonl", ["Why is it odd?"])

    with pytest.raises(InvalidConfigError, match=f"{option}: not one usable prompt"):
        users_prompts(tmp_path / "work", file, **changes)

    assert not WorkFolder(tmp_path / "work").prompts.exists()


def test_a_target_without_a_template_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None

    with pytest.raises(InvalidConfigError, match="no chat template"):
        read_template(tokenizer)


def test_a_template_that_hides_the_message_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ messages | length }}"

    with pytest.raises(InvalidConfigError, match="does not repeat"):
        read_template(tokenizer)


@pytest.mark.parametrize(
    ("text", "usable"),
    [
        ("Why is the sky blue?", True),
        ("Why?", False),
        ("", False),
        ("no no no no no no no no no", False),
    ],
)
def test_degenerate_prompts_are_dropped(text: str, usable: bool) -> None:
    assert is_usable(text) is usable


def test_passages_come_from_the_library_and_never_from_both_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(f"word{'abcdefghij'[i % 10]}" for i in range(60))
    body = "".join(f"    line = {i}\n" for i in range(6))
    for name in "abcdefghijklmnop":
        (tmp_path / f"{name}.py").write_text(f'"""{name} {words}."""\n\ndef {name}():\n{body}')
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr("specray.distill.texts.distributions", list)

    passages = find_passages()

    assert len(passages) == 32
    assert passages == find_passages()
    held_out = {p.text.split()[0] for p in passages if p.held_out and not p.is_code}
    code = {p.text[4] for p in passages if p.held_out and p.is_code}
    assert held_out == code
    assert 0 < len(held_out) < 16
