"""What can be said about a target and a draft before either runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM

from specray.errors import InvalidConfigError
from specray.models.experts import find_experts
from specray.models.sources import resolve
from specray.models.tokenizers import Tokens, first_difference, other_differences, read_tokens
from specray.models.unreadable import UNMAKEABLE, UNREADABLE
from specray.models.vocabulary import Vocabulary, shared_tokens

_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as its files describe it."""

    name: str  # as it was given
    path: str  # as transformers loads it
    num_tokens: int  # of the tokenizer
    vocab_size: int  # rows of the head; more than `num_tokens` is padding
    num_parameters: int
    num_active_parameters: int  # that one token passes through: fewer where there are experts
    has_weights: bool  # on this machine, without downloading


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models, whether one can draft for the other, and what is worth knowing besides."""

    target: ModelFacts
    draft: ModelFacts
    difference: str | None  # why the draft can't be used as it is; None if it can
    num_shared: int | None  # tokens that it could draft with all the same; None if it needs none
    notes: tuple[str, ...]

    @property
    def size_ratio(self) -> float:
        """Parameters that a token passes through: the draft's over the target's."""
        return self.draft.num_active_parameters / self.target.num_active_parameters


def compare(target: str, draft: str) -> Pair:
    """Reads configs and tokenizers of both; loads no weights.

    Args:
        target: a folder, hub id or `bundled:NAME`.
        draft: likewise.

    Raises:
        InvalidConfigError: a config or tokenizer can't be read.
    """
    target_tokens, draft_tokens = read_tokens(resolve(target)), read_tokens(resolve(draft))
    facts = _facts(target, target_tokens), _facts(draft, draft_tokens)
    difference = first_difference(target_tokens.ids, draft_tokens.ids)
    notes = _notes(target_tokens, draft_tokens, *facts)
    num_shared = None
    if difference is not None:
        try:
            num_shared = _num_shared(*facts)
        except InvalidConfigError as error:
            num_shared = 0
            notes.append(f"draft.model.target_tokenizer would not help: {error}")
    return Pair(*facts, difference, num_shared, tuple(notes))


def _num_shared(target: ModelFacts, draft: ModelFacts) -> int:
    """With how many tokens a draft proposes that is told the target's tokenizer."""
    return len(shared_tokens(Vocabulary(target.path), Vocabulary(draft.path)).target_ids)


def _facts(name: str, tokens: Tokens) -> ModelFacts:
    path = resolve(name)
    try:
        config: Any = AutoConfig.from_pretrained(path)
    except UNREADABLE as error:
        raise InvalidConfigError(f"model `{name}`: its config can't be read: {error}") from error
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except UNMAKEABLE as error:
        raise InvalidConfigError(
            f"model `{name}`: transformers can't make it of its config: {error!r}"
        ) from error
    text = config.get_text_config()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    experts = find_experts(model, text, None)
    num_idle = experts.num_idle_parameters if experts else 0
    return ModelFacts(
        name,
        path,
        num_tokens=len(tokens.ids),
        vocab_size=text.vocab_size,
        num_parameters=num_parameters,
        num_active_parameters=num_parameters - num_idle,
        has_weights=_has_weights(path),
    )


def _has_weights(path: str) -> bool:
    if Path(path).is_dir():
        return any((Path(path) / name).is_file() for name in _WEIGHTS)
    return any(isinstance(try_to_load_from_cache(path, name), str) for name in _WEIGHTS)


def _notes(
    target_tokens: Tokens, draft_tokens: Tokens, target: ModelFacts, draft: ModelFacts
) -> list[str]:
    """What differs without doing harm, and what may."""
    notes = []
    for role, facts in (("target", target), ("draft", draft)):
        if facts.vocab_size > facts.num_tokens:
            padding = facts.vocab_size - facts.num_tokens
            notes.append(f"the {role}'s head has {padding} rows of padding, which does no harm")
    notes += other_differences(target_tokens, draft_tokens)
    if draft.num_active_parameters >= target.num_active_parameters:
        notes.append(
            "a token passes through as many parameters of the draft as of the target, or more"
        )
    return notes
