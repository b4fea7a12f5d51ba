"""The target's chat template, taken apart."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specray.errors import InvalidConfigError

_MARK = "\u2603 mark \u2603"  # no template contains it


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """What stands before a user's words, and what follows them."""

    tokenizer: Any
    user_start: tuple[int, ...]  # tokens; what the target continues when it writes a prompt
    end_ids: frozenset[int]  # tokens that end a turn
    user_end: str = ""  # text that ends a user's turn where no token of its own does

    def encode(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """The tokens after which the assistant answers."""
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: list[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True).strip()

    def user_words(self, token_ids: list[int]) -> str | None:
        """What the target wrote behind `user_start`; None if it has not come to an end."""
        text = self.decode(token_ids)
        if self.user_end and self.user_end in text:
            return text.partition(self.user_end)[0].rstrip()
        return text if token_ids and token_ids[-1] in self.end_ids else None


def read_template(tokenizer: Any, end_ids: Iterable[int] = ()) -> ChatTemplate:
    """Takes the template of a tokenizer apart.

    Args:
        tokenizer: the target's.
        end_ids: tokens that end a turn besides those that the tokenizer knows of.

    Raises:
        InvalidConfigError: there is no chat template, or it hides the user's words.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidConfigError(
            "target: its tokenizer has no chat template; name an instruct model, or a folder "
            "whose tokenizer has one"
        )
    text = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
    before, mark, after = text.partition(_MARK)
    if not mark:
        raise InvalidConfigError("target: its chat template does not repeat the user's message")
    # A plain token there, such as the `[` of `[/INST]`, ends nothing: any answer may contain it.
    ending = set(tokenizer.encode(after.strip(), add_special_tokens=False)[:1])
    ending &= {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    ends = {*ending, *end_ids, tokenizer.eos_token_id}
    return ChatTemplate(
        tokenizer,
        tuple(tokenizer.encode(before, add_special_tokens=False)),
        frozenset(i for i in ends if i is not None),
        "" if ending else after.strip(),
    )
