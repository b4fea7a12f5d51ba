from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

from specray.errors import InvalidConfigError
from specray.models.vocabulary import Vocabulary, shared_tokens

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _save(tokenizer: Tokenizer, folder: Path, special: list[str]) -> str:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return str(folder)


def byte_level(folder: Path, words: list[str], special: list[str]) -> str:
    """A byte-level BPE whose merges make just these words, letter by letter."""
    merges = [(word[:i], word[i]) for word in words for i in range(1, len(word))]
    tokens = [*ALPHABET, *(a + b for a, b in merges)]
    model = BPE({token: i for i, token in enumerate(dict.fromkeys(tokens))}, merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _save(tokenizer, folder, special)


def sentencepiece(folder: Path, words: list[str], special: list[str]) -> str:
    """A BPE as SentencePiece writes it, which falls back to bytes."""
    merges = [(word[:i], word[i]) for word in words for i in range(1, len(word))]
    letters = sorted({letter for word in words for letter in word})
    tokens = [*BYTES, *letters, *(a + b for a, b in merges)]
    model = BPE({t: i for i, t in enumerate(dict.fromkeys(tokens))}, merges, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _save(tokenizer, folder, special)


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
    model = _save(Tokenizer(WordLevel({"a": 0, "b": 1}, "a")), tmp_path / "w", [])
    with pytest.raises(InvalidConfigError, match="neither byte-level BPE nor SentencePiece"):
        Vocabulary(model)


def test_too_few_shared_tokens_are_refused(tmp_path: Path) -> None:
    target = Vocabulary(byte_level(tmp_path / "a", [], []))
    draft = Vocabulary(byte_level(tmp_path / "b", [], []))
    draft.by_spelling = lambda: {b"a": 0}  # type: ignore[method-assign]
    with pytest.raises(InvalidConfigError, match="share only 1 token"):
        shared_tokens(target, draft)
