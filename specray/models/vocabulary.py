"""What the tokens of two vocabularies have in common.

Two tokens are the same when they stand for the same bytes, however their tokenizers write them
(`Ġthe` in byte-level BPE is `▁the` in SentencePiece), or when they are special and named alike.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specray.errors import InvalidConfigError
from specray.models.tokenizers import load_tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_MIN_SHARED = 256  # fewer, and hardly any text can be proposed

Spelling = bytes | str
"""The bytes of an ordinary token, the name of a special one."""


class SharedTokens(NamedTuple):
    """Ids of the same tokens, for the target and for the draft."""

    target_ids: NDArray[np.int32]  # [shared]
    draft_ids: NDArray[np.int32]  # [shared]


class Vocabulary:
    """A tokenizer's tokens and what they stand for."""

    def __init__(self, model: str) -> None:
        """Loads the tokenizer of a resolved model.

        Raises:
            InvalidConfigError: It can't be loaded, or writes its tokens in a way not known here.
        """
        self._model = model
        self._tokenizer = load_tokenizer(model)
        spell = _SPELLERS[self._find_style()]
        special = set(self._tokenizer.added_tokens_decoder)
        self._spellings: dict[int, Spelling] = {
            token_id: token if token_id in special else spell(token)
            for token, token_id in self._tokenizer.get_vocab().items()
        }

    def by_spelling(self) -> dict[Spelling, int]:
        """Token ids; of two tokens for the same bytes the first one."""
        return {self._spellings[i]: i for i in sorted(self._spellings, reverse=True)}

    def spell(self, token_ids: Sequence[int]) -> str:
        """The text of tokens; an incomplete character at either end is dropped."""
        parts = (self._spellings.get(i, b"") for i in token_ids)
        joined = b"".join(p.encode() if isinstance(p, str) else p for p in parts)
        return joined.decode(errors="ignore")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without those that a tokenizer puts around a whole one."""
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    def _find_style(self) -> str:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InvalidConfigError(
                f"the tokenizer of `{self._model}`, a {type(self._tokenizer).__name__}, is a slow "
                "one, which does not say how it writes its tokens, so they can't be compared with "
                "those of another; take a draft with the same tokenizer, or save it with a "
                "tokenizer.json"
            )
        pipeline = json.loads(backend.to_str())
        parts = [pipeline.get("decoder") or {}, pipeline.get("pre_tokenizer") or {}]
        text = json.dumps(parts)
        if '"ByteLevel"' in text:
            return "byte-level"
        if "\\u2581" in text or '"Metaspace"' in text:
            return "sentencepiece"
        raise InvalidConfigError(
            f"the tokenizer of `{self._model}` is neither byte-level BPE nor SentencePiece, so its "
            "tokens can't be compared with those of another; take a draft with the same tokenizer"
        )


def shared_tokens(target: Vocabulary, draft: Vocabulary) -> SharedTokens:
    """The tokens that both have, in the order of the target's ids.

    Raises:
        InvalidConfigError: There are too few to draft with.
    """
    theirs = draft.by_spelling()
    ours = target.by_spelling()
    pairs = sorted((i, theirs[spelling]) for spelling, i in ours.items() if spelling in theirs)
    if len(pairs) < _MIN_SHARED:
        raise InvalidConfigError(
            f"draft and target share only {len(pairs)} tokens; take a draft of a related tokenizer"
        )
    both = np.array(pairs, np.int32)
    return SharedTokens(both[:, 0], both[:, 1])


def _spell_byte_level(token: str) -> bytes:
    return bytes(_BYTES_OF[char] for char in token if char in _BYTES_OF)


def _spell_sentencepiece(token: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace("\u2581", " ").encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's byte-level BPE: printable ones stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTES_OF = _byte_level_alphabet()
_SPELLERS = {"byte-level": _spell_byte_level, "sentencepiece": _spell_sentencepiece}
