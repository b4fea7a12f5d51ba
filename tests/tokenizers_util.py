"""Small tokenizers of the kinds that models have."""

import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def save(tokenizer: Tokenizer, folder: Path, special: list[str]) -> str:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return str(folder)


def byte_level(folder: Path, words: list[str], special: list[str], seed: int | None = None) -> str:
    """A byte-level BPE whose merges make just these words, letter by letter.

    Its ids are in a random order where there is a seed.
    """
    merges = [(word[:i], word[i]) for word in words for i in range(1, len(word))]
    tokens = [*ALPHABET, *(a + b for a, b in merges)]
    if seed is not None:
        random.Random(seed).shuffle(tokens)
    model = BPE({token: i for i, token in enumerate(dict.fromkeys(tokens))}, merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return save(tokenizer, folder, special)


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
    return save(tokenizer, folder, special)
