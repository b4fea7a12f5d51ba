from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specray.errors import InvalidConfigError
from specray.models.tokenizers import check_same_tokenizer, first_difference


def save_tokenizer(folder: Path, words: list[str]) -> str:
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return str(folder)


def test_equal_vocabularies_pass(tmp_path: Path) -> None:
    target = save_tokenizer(tmp_path / "target", ["<unk>", "a", "b"])
    draft = save_tokenizer(tmp_path / "draft", ["<unk>", "a", "b"])

    assert check_same_tokenizer(target, draft) == []


def test_what_else_differs_is_told(tmp_path: Path) -> None:
    target = save_tokenizer(tmp_path / "target", ["<unk>", "a", "b"])
    draft = save_tokenizer(tmp_path / "draft", ["<unk>", "a", "b"])
    (tmp_path / "draft" / "chat_template.jinja").write_text("{{ messages }}")

    (note,) = check_same_tokenizer(target, draft)
    assert note.startswith("chat templates differ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["<unk>", "b", "a"], r"id 1 is 'a' for the target .* and 'b' for the draft"),
        (["<unk>", "a"], r"id 2 is 'b' for the target \(of 3 tokens\) and None .*\(of 2 tokens\)"),
        (["<unk>", "a", "b", "c"], r"the draft has 4 tokens and the target 3; id 3, 'c'"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, words: list[str], message: str) -> None:
    target = save_tokenizer(tmp_path / "target", ["<unk>", "a", "b"])
    draft = save_tokenizer(tmp_path / "draft", words)

    with pytest.raises(InvalidConfigError, match=rf"draft\.model\.model .*{message}"):
        check_same_tokenizer(target, draft)


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    target = save_tokenizer(tmp_path / "target", ["<unk>", "a"])
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text('{"model_type": "llama"}')

    with pytest.raises(InvalidConfigError, match=r"draft`: its tokenizer can't be loaded"):
        check_same_tokenizer(target, str(draft))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"model_type": "llama", "hidden_size": "x"}', "field 'hidden_size': .* expected int"),
        ('{"model_type": "llama", "num_attention_heads": 0, "head_dim": 4}', "by zero"),
    ],
)
def test_a_config_that_transformers_refuses_is_named(
    tmp_path: Path, config: str, reason: str
) -> None:
    target = save_tokenizer(tmp_path / "target", ["<unk>", "a"])
    draft = save_tokenizer(tmp_path / "draft", ["<unk>", "a"])
    (tmp_path / "draft" / "config.json").write_text(config)

    with pytest.raises(InvalidConfigError, match=rf"draft`: its tokenizer .* loaded \(.*{reason}"):
        check_same_tokenizer(target, draft)


vocabularies = st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=8).map(
    lambda words: {word: i for i, word in enumerate(words)}
)


@given(vocabularies, vocabularies)
def test_a_difference_is_found_exactly_when_there_is_one(
    target: dict[str, int], draft: dict[str, int]
) -> None:
    assert (first_difference(target, draft) is None) == (target == draft)
