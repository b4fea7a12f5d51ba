"""From settings to a proposer."""

import sys
from collections.abc import Collection
from importlib import import_module
from typing import Any

import numpy as np

from specray.config import (
    CustomDraftConfig,
    DraftConfig,
    LiveDraftConfig,
    ModelDraftConfig,
    NgramDraftConfig,
)
from specray.draft.fair_share import FairShare
from specray.draft.hybrid import HybridProposer
from specray.draft.ngrams import NgramProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.draft.slowness import Slowness
from specray.errors import InvalidConfigError
from specray.models.ngrams import NGRAM_FILE, load_ngrams
from specray.models.sources import ngram_folder


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
        return _model_proposer(config.model, config.cpus, share, slowness)
    if config.method == "custom" and config.custom is not None:
        return _custom_proposer(config.custom, config.cpus)
    lookup = PromptLookup(config.prompt_lookup, share)
    if config.method == "hybrid" and config.model is not None:
        model = _model_proposer(config.model, config.cpus, share, slowness)
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
    config: ModelDraftConfig, cpus: Collection[int], share: FairShare, slowness: Slowness | None
) -> Proposer:
    from specray.draft import model_factory  # PyTorch: others start sooner and smaller without

    _limit_threads(cpus)
    return model_factory.make_model_proposer(config, share, slowness)


def _ngram_proposer(config: NgramDraftConfig) -> NgramProposer:
    folder = ngram_folder(config.model)
    ngrams = load_ngrams(folder)
    if ngrams is None:
        raise InvalidConfigError(
            f"draft.ngram.model {config.model}: {folder} has no {NGRAM_FILE}; `specray distill` "
            "makes it, by --only ngrams from answers that are there, and exports it"
        )
    return NgramProposer(ngrams, np.random.default_rng(), config.fan_out)


def _custom_proposer(config: CustomDraftConfig, cpus: Collection[int]) -> Proposer:
    module, _, name = config.import_path.partition(":")
    try:
        proposer_class = getattr(import_module(module), name)
        _limit_threads(cpus)
        made: Any = proposer_class(**config.kwargs)
    except (ImportError, AttributeError, TypeError) as error:
        raise InvalidConfigError(f"draft.custom {config.import_path}: {error}") from error
    proposer: Proposer = made
    return proposer


def _limit_threads(cpus: Collection[int]) -> None:
    """Keeps PyTorch, where it is loaded, to a thread for each of these cores; none leaves it."""
    torch = sys.modules.get("torch")
    if cpus and torch is not None:
        torch.set_num_threads(len(cpus))
