"""From settings to a proposer."""

from collections.abc import Collection
from importlib import import_module
from typing import Any

import torch
from pydantic import ValidationError

from specray.config import CustomDraftConfig, DraftConfig, LiveDraftConfig, ModelDraftConfig
from specray.draft.hybrid import HybridProposer
from specray.draft.loading import load_language_model
from specray.draft.model import ModelProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.draft.translation import TranslatedProposer, translate
from specray.errors import InvalidConfigError
from specray.models.sources import resolve
from specray.models.vocabulary import Vocabulary


def make_proposer(config: DraftConfig) -> Proposer:
    """The proposer that `config.method` names; a model is loaded here.

    Raises:
        InvalidConfigError: The model can't be found, loaded, or used as a draft.
    """
    if config.method == "model" and config.model is not None:
        return _model_proposer(config.model)
    if config.method == "hybrid" and config.model is not None:
        return HybridProposer(PromptLookup(config.prompt_lookup), _model_proposer(config.model))
    if config.method == "custom" and config.custom is not None:
        return _custom_proposer(config.custom)
    return PromptLookup(config.prompt_lookup)


def reconfigure(proposer: Proposer, user_config: dict[str, Any]) -> None:
    """Takes over the live settings; from any thread.

    Raises:
        InvalidConfigError: They are faulty, or the proposer has none.
    """
    try:
        live = LiveDraftConfig.model_validate(user_config)
    except ValidationError as error:
        raise InvalidConfigError(f"user_config of the draft: {error}") from None
    if not isinstance(proposer, HybridProposer):
        raise InvalidConfigError(
            "user_config of the draft: only draft.method: hybrid has sources to choose from"
        )
    proposer.sources = frozenset(live.sources)


def _model_proposer(config: ModelDraftConfig) -> Proposer:
    if config.target_tokenizer is None:
        return _proposer_of(config, None)
    target = Vocabulary(resolve(config.target_tokenizer))
    translation = translate(target, Vocabulary(resolve(config.model)))
    return TranslatedProposer(_proposer_of(config, translation.draft_ids), translation)


def _proposer_of(config: ModelDraftConfig, allowed: Collection[int] | None) -> ModelProposer:
    model = load_language_model(resolve(config.model), config, allowed)
    generator = torch.Generator(model.device)
    # Fresh entropy: replicas that drew alike would repeat each other's guesses.
    generator.seed()
    return ModelProposer(model, config, generator)


def _custom_proposer(config: CustomDraftConfig) -> Proposer:
    module, _, name = config.import_path.partition(":")
    try:
        made: Any = getattr(import_module(module), name)(**config.kwargs)
    except (ImportError, AttributeError, TypeError) as error:
        raise InvalidConfigError(f"draft.custom {config.import_path}: {error}") from error
    proposer: Proposer = made
    return proposer
