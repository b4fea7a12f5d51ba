"""From settings to a proposer."""

from collections.abc import Collection
from importlib import import_module
from typing import Any

import numpy as np
import torch

from specray.config import (
    CustomDraftConfig,
    DraftConfig,
    LiveDraftConfig,
    ModelDraftConfig,
    NgramDraftConfig,
)
from specray.draft.fair_share import FairShare
from specray.draft.hybrid import HybridProposer
from specray.draft.loading import load_language_model
from specray.draft.model import ModelProposer
from specray.draft.ngrams import NgramProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.draft.slowed import SlowedModel, Slowness
from specray.draft.translation import TranslatedProposer, translate
from specray.errors import InvalidConfigError
from specray.models.ngrams import NGRAM_FILE, load_ngrams
from specray.models.sources import ngram_folder, resolve
from specray.models.vocabulary import Vocabulary


def make_proposer(config: DraftConfig, slowness: Slowness | None = None) -> Proposer:
    """The proposer that `config.method` names; a model is loaded here.

    Args:
        config: what proposes.
        slowness: what slows its model down, for experiments.

    Raises:
        InvalidConfigError: The model can't be found, loaded, or used as a draft.
    """
    share = FairShare(config.weights)
    if config.method == "model" and config.model is not None:
        return _model_proposer(config.model, share, slowness)
    if config.method == "custom" and config.custom is not None:
        return _custom_proposer(config.custom)
    lookup = PromptLookup(config.prompt_lookup, share)
    if config.method == "hybrid" and config.model is not None:
        model = _model_proposer(config.model, share, slowness)
        quick = None
        if config.ngram is not None:  # the model drafts ahead for what they propose
            quick = _ngram_proposer(config.ngram.model_copy(update={"fan_out": 0}))
        return HybridProposer(lookup, model, quick)
    if config.method == "ngram" and config.ngram is not None:
        return HybridProposer(lookup, _ngram_proposer(config.ngram))
    return lookup


def reconfigure(proposer: Proposer, live: LiveDraftConfig) -> None:
    """Takes over the live settings that are the proposer's; from any thread.

    Raises:
        InvalidConfigError: The proposer has none of these.
    """
    if isinstance(proposer, HybridProposer):
        proposer.sources = frozenset(live.sources)
    elif "sources" in live.model_fields_set:
        raise InvalidConfigError(
            "sources: only the draft methods hybrid and ngram have some to choose from"
        )


def _model_proposer(
    config: ModelDraftConfig, share: FairShare, slowness: Slowness | None
) -> Proposer:
    if config.target_tokenizer is None:
        return _proposer_of(config, None, share, slowness)
    target = Vocabulary(resolve(config.target_tokenizer))
    translation = translate(target, Vocabulary(resolve(config.model)))
    proposer = _proposer_of(config, translation.draft_ids, share, slowness)
    return TranslatedProposer(proposer, translation)


def _proposer_of(
    config: ModelDraftConfig,
    allowed: Collection[int] | None,
    share: FairShare,
    slowness: Slowness | None,
) -> ModelProposer:
    model = load_language_model(resolve(config.model), config, allowed)
    if slowness is not None:
        model = SlowedModel(model, slowness)
    generator = torch.Generator(model.device)
    # Fresh entropy: replicas that drew alike would repeat each other's guesses.
    generator.seed()
    return ModelProposer(model, config, generator, share=share)


def _ngram_proposer(config: NgramDraftConfig) -> NgramProposer:
    folder = ngram_folder(config.model)
    ngrams = load_ngrams(folder)
    if ngrams is None:
        raise InvalidConfigError(
            f"draft.ngram.model {config.model}: {folder} has no {NGRAM_FILE}; `specray distill` "
            "makes it, by --only ngrams from answers that are there, and exports it"
        )
    return NgramProposer(ngrams, np.random.default_rng(), config.fan_out)


def _custom_proposer(config: CustomDraftConfig) -> Proposer:
    module, _, name = config.import_path.partition(":")
    try:
        made: Any = getattr(import_module(module), name)(**config.kwargs)
    except (ImportError, AttributeError, TypeError) as error:
        raise InvalidConfigError(f"draft.custom {config.import_path}: {error}") from error
    proposer: Proposer = made
    return proposer
