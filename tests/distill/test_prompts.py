from pathlib import Path

import pytest

from specray.distill.prompts import is_usable
from specray.distill.template import read_template
from specray.distill.texts import find_passages
from specray.errors import InvalidConfigError
from tests.distill.conftest import make_tokenizer


def test_the_template_is_taken_apart() -> None:
    tokenizer = make_tokenizer()

    template = read_template(tokenizer)

    assert tokenizer.decode(template.user_start) == "<s>user|"
    assert template.end_ids == {tokenizer.eos_token_id}
    text = tokenizer.decode(template.encode([{"role": "user", "content": "Hi"}]))
    assert text == "<s>user|Hi</s><s>assistant|"


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
