from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specray.errors import InvalidConfigError
from specray.models.vocabulary import Vocabulary, shared_tokens
from tests.tokenizers_util import byte_level, save, sentencepiece


def test_tokens_are_the_same_by_what_they_stand_for(tmp_path: Path) -> None:
    target = Vocabulary(byte_level(tmp_path / "a", ["\u0120the", "cat"], ["<end>", "<user>"]))
    draft = Vocabulary(sentencepiece(tmp_path / "b", ["\u2581the", "cow"], ["<end>", "<sys>"]))
    shared = shared_tokens(target, draft)
    ours, theirs = target.by_spelling(), draft.by_spelling()
    spelled = {ids: s for s, i in ours.items() if (ids := (i, theirs.get(s)))[1] is not None}
    assert set(zip(*(ids.tolist() for ids in shared), strict=True)) == set(spelled)
    assert {b" the", b"c", b"\xff", "<end>"} <= set(spelled.values())
    assert not {b"cat", b"cow", "<user>", "<sys>"} & set(spelled.values())


def test_a_letter_is_shared_once_though_one_vocabulary_also_has_its_byte(tmp_path: Path) -> None:
    target = Vocabulary(byte_level(tmp_path / "a", [], []))
    draft = Vocabulary(sentencepiece(tmp_path / "b", ["abc"], []))
    shared = shared_tokens(target, draft)
    assert len(set(shared.target_ids.tolist())) == len(shared.target_ids) == 256
    assert len(set(shared.draft_ids.tolist())) == 256


@pytest.mark.parametrize("text", ["the cat", "na\u00efve \u4e16\u754c", "  two  spaces\n"])
def test_spelling_gives_the_text_back(tmp_path: Path, text: str) -> None:
    vocabulary = Vocabulary(byte_level(tmp_path / "a", ["\u0120the", "cat"], ["<end>"]))
    token_ids = vocabulary.encode(text)
    assert vocabulary.spell(token_ids) == text
    assert vocabulary.spell([*token_ids, vocabulary.by_spelling()["<end>"]]) == text + "<end>"


def test_incomplete_characters_and_unknown_ids_spell_nothing(tmp_path: Path) -> None:
    vocabulary = Vocabulary(byte_level(tmp_path / "a", [], []))
    first_byte, *_ = vocabulary.encode("\u4e16")
    assert vocabulary.spell([*vocabulary.encode("a"), first_byte, 10**6]) == "a"


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    model = save(Tokenizer(WordLevel({"a": 0, "b": 1}, "a")), tmp_path / "w", [])
    with pytest.raises(InvalidConfigError, match="neither byte-level BPE nor SentencePiece"):
        Vocabulary(model)


def test_a_slow_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')

    with pytest.raises(InvalidConfigError, match=f"`{tmp_path}`, a ByT5Tokenizer, is a slow one"):
        Vocabulary(str(tmp_path))


def test_too_few_shared_tokens_are_refused(tmp_path: Path) -> None:
    target = Vocabulary(byte_level(tmp_path / "a", [], []))
    draft = Vocabulary(byte_level(tmp_path / "b", [], []))
    draft.by_spelling = lambda: {b"a": 0}  # type: ignore[method-assign]
    with pytest.raises(InvalidConfigError, match="share only 1 token"):
        shared_tokens(target, draft)


def test_a_config_that_transformers_refuses_is_named(tmp_path: Path) -> None:
    folder = byte_level(tmp_path / "a", [], [])
    (tmp_path / "a" / "config.json").write_text('{"model_type": "llama", "hidden_size": "x"}')

    with pytest.raises(InvalidConfigError, match="its tokenizer can't be loaded .* check its name"):
        Vocabulary(folder)
