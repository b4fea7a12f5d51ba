import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, MixtralConfig, PreTrainedTokenizerFast

from specray.errors import InvalidConfigError
from specray.models.pair import compare
from specray.models.vocabulary import Vocabulary, shared_tokens
from tests.models.test_tokenizers import save_tokenizer
from tests.tokenizers_util import byte_level, sentencepiece

WORDS = ["<unk>", "a", "b", "c"]


def save(folder: Path, words: list[str] = WORDS, vocab_size: int = 4, layers: int = 1) -> str:
    save_tokenizer(folder, words)
    tiny_config(vocab_size, layers).save_pretrained(folder)
    return str(folder)


def tiny_config(vocab_size: int, layers: int = 1) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=8,
        num_attention_heads=1,
        num_hidden_layers=layers,
        tie_word_embeddings=True,
    )


def test_a_pair_of_one_family(tmp_path: Path) -> None:
    pair = compare(save(tmp_path / "target", layers=3), save(tmp_path / "draft"))

    assert pair.difference is None
    assert pair.notes == ()
    assert pair.num_shared is None
    assert pair.draft.num_parameters == 4 * 8 + 4 * 64 + 3 * 64 + 3 * 8
    assert pair.target.num_parameters - pair.draft.num_parameters == 2 * (7 * 64 + 2 * 8)
    assert pair.size_ratio == pair.draft.num_parameters / pair.target.num_parameters
    assert not pair.target.has_weights


def test_a_draft_is_held_against_what_a_token_passes_through(tmp_path: Path) -> None:
    draft, target = save(tmp_path / "draft"), tmp_path / "target"
    save_tokenizer(target, WORDS)
    shape = {"vocab_size": 4, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "tie_word_embeddings": True}
    MixtralConfig(**shape, **heads, num_local_experts=4, num_experts_per_tok=1).save_pretrained(
        target
    )
    pair = compare(str(target), draft)

    assert pair.target.num_parameters > pair.draft.num_parameters
    expert, router = 3 * 64, 4 * 8
    assert pair.target.num_active_parameters == pair.target.num_parameters - 3 * expert
    assert pair.target.num_active_parameters == pair.draft.num_parameters + router
    assert pair.notes == ()


def test_another_vocabulary_is_named(tmp_path: Path) -> None:
    pair = compare(save(tmp_path / "target"), save(tmp_path / "draft", ["<unk>", "b", "a", "c"]))

    assert pair.difference is not None
    assert pair.difference.startswith("id 1 is 'a' for the target")
    assert pair.num_shared == 0
    assert "neither byte-level BPE nor SentencePiece" in pair.notes[-1]


def test_another_vocabularys_shared_tokens_are_counted(tmp_path: Path) -> None:
    folders = [
        byte_level(tmp_path / "target", ["\u0120the", "cat"], ["<end>"]),
        sentencepiece(tmp_path / "draft", ["\u2581the", "cow"], ["<end>"]),
    ]
    for folder in folders:
        tiny_config(400).save_pretrained(folder)

    pair = compare(*folders)

    assert pair.difference is not None
    shared = shared_tokens(*map(Vocabulary, folders))
    assert pair.num_shared == len(shared.target_ids)
    assert not any("target_tokenizer" in note for note in pair.notes)


def test_what_does_no_harm_is_said(tmp_path: Path) -> None:
    target, draft = save(tmp_path / "target"), save(tmp_path / "draft", vocab_size=10, layers=2)
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="<unk>")),
        unk_token="<unk>",
        eos_token="c",
    )
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(draft)

    pair = compare(target, draft)

    assert pair.difference is None
    padding, special, added, template, size = pair.notes
    assert "the draft's head has 6 rows of padding" in padding
    assert "eos_token: None, 'c'" in special
    assert "'c'" in added
    assert "chat templates differ" in template
    assert "as many parameters of the draft" in size


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    ],
)
def test_weights_are_noticed(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "model")
    (Path(folder) / name).touch()

    assert compare(folder, folder).target.has_weights


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    (Path(folder) / "config.json").write_text('{"model_type": "nonsense"}')

    with pytest.raises(InvalidConfigError, match="its (tokenizer|config) can't be"):
        compare(folder, folder)


def test_a_config_that_no_model_can_be_made_of_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_act": "nonsense"}
    (Path(folder) / "config.json").write_text(json.dumps(config))

    with pytest.raises(InvalidConfigError, match="model`: transformers can't make it .*nonsense"):
        compare(folder, folder)
