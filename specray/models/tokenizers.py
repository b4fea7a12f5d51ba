"""Whether two models mean the same text by the same token ids."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transformers import AutoTokenizer

from specray.errors import InvalidConfigError
from specray.models.sources import resolve
from specray.models.unreadable import UNREADABLE


class Tokens(NamedTuple):
    """What a tokenizer calls its tokens."""

    ids: Mapping[str, int]  # of every token, with added ones
    added: Mapping[str, int]  # beyond the vocabulary it was trained with
    special: Mapping[str, str]  # role (bos_token, ...) to token
    chat_template: str | None


def check_same_tokenizer(target_source: str, draft_source: str) -> list[str]:
    """Checks that every token has the same id for both models.

    Which tokens end a text may differ: only the target decides that.

    Returns:
        What differs all the same, see `other_differences`.

    Raises:
        InvalidConfigError: with the first difference, or if a tokenizer can't be loaded.
    """
    target, draft = resolve(target_source), resolve(draft_source)
    if target == draft:
        return []
    target_tokens, draft_tokens = read_tokens(target), read_tokens(draft)
    difference = first_difference(target_tokens.ids, draft_tokens.ids)
    if difference is not None:
        raise InvalidConfigError(
            f"draft.model.model `{draft_source}` can't draft for `{target_source}`: {difference}; "
            "name a draft of the target's own family, set draft.model.target_tokenizer to draft "
            "with the tokens that both have, or set draft.method: prompt_lookup"
        )
    return other_differences(target_tokens, draft_tokens)


def first_difference(target: Mapping[str, int], draft: Mapping[str, int]) -> str | None:
    """In words, the first way in which two vocabularies (token to id) differ; None if in none."""
    by_id = {token_id: token for token, token_id in draft.items()}
    for token, token_id in sorted(target.items(), key=lambda item: item[1]):
        if draft.get(token) != token_id:
            return (
                f"id {token_id} is {token!r} for the target (of {len(target)} tokens) and "
                f"{by_id.get(token_id)!r} for the draft (of {len(draft)} tokens)"
            )
    if len(draft) != len(target):
        token = min(draft.keys() - target.keys(), key=lambda token: draft[token])
        return (
            f"the draft has {len(draft)} tokens and the target {len(target)}; id {draft[token]}, "
            f"{token!r}, is only the draft's"
        )
    return None


def other_differences(target: Tokens, draft: Tokens) -> list[str]:
    """In words, what differs besides ids: a draft can be used all the same, but may agree less."""
    notes = []
    specials = _changed(target.special, draft.special)
    if specials:
        notes.append(f"special tokens differ ({specials}); only the target's count")
    if set(target.added) != set(draft.added):
        differing = sorted(set(target.added) ^ set(draft.added))
        notes.append(f"added tokens differ ({', '.join(map(repr, differing[:5]))})")
    if target.chat_template != draft.chat_template:
        notes.append(
            "chat templates differ: the target's is used, so a draft that was trained with "
            "another agrees less"
        )
    return notes


def _changed(target: Mapping[str, str], draft: Mapping[str, str]) -> str:
    roles = [role for role in sorted({*target, *draft}) if target.get(role) != draft.get(role)]
    return ", ".join(f"{role}: {target.get(role)!r}, {draft.get(role)!r}" for role in roles)


def read_tokens(model: str) -> Tokens:
    """The tokens of a resolved model.

    Raises:
        InvalidConfigError: its tokenizer can't be loaded.
    """
    tokenizer = load_tokenizer(model)
    special = {
        role: str(token)
        for role, token in tokenizer.special_tokens_map.items()
        if isinstance(token, str)
    }
    return Tokens(
        tokenizer.get_vocab(), tokenizer.get_added_vocab(), special, tokenizer.chat_template
    )


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a resolved model.

    Raises:
        InvalidConfigError: it can't be loaded.
    """
    try:
        return AutoTokenizer.from_pretrained(model)
    except UNREADABLE as error:
        raise InvalidConfigError(
            f"model `{model}`: its tokenizer can't be loaded ({_in_short(error)}); check its "
            "name and its files, that the hub can be reached from here, and that HF_TOKEN is set "
            "if it is gated"
        ) from error


def _in_short(error: Exception) -> str:
    """Its first line, and the next one if that only announces it."""
    first, *more = str(error).splitlines() or [type(error).__name__]
    return f"{first} {more[0].strip()}" if first.endswith(":") and more else first
