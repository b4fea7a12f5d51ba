"""The target's chat template, taken apart."""

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

    def encode(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """The tokens after which the assistant answers."""
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: list[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True).strip()


def read_template(tokenizer: Any) -> ChatTemplate:
    """Takes the template of a tokenizer apart.

    Args:
        tokenizer: the target's.

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
    ending = tokenizer.encode(after.strip(), add_special_tokens=False)[:1]
    end_ids = {*ending, tokenizer.eos_token_id}
    start = tuple(tokenizer.encode(before, add_special_tokens=False))
    return ChatTemplate(tokenizer, start, frozenset(i for i in end_ids if i is not None))
