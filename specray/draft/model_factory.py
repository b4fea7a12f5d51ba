"""From settings to a proposer with a model."""

from collections.abc import Collection

import torch

from specray.config import ModelDraftConfig
from specray.draft.fair_share import FairShare
from specray.draft.graphs import make_decoder
from specray.draft.loading import load_language_model
from specray.draft.model import ModelProposer
from specray.draft.proposer import Proposer
from specray.draft.slowed import SlowedDecoder, SlowedModel
from specray.draft.slowness import Slowness
from specray.draft.translation import TranslatedProposer, translate
from specray.models.sources import resolve
from specray.models.vocabulary import Vocabulary


def make_model_proposer(
    config: ModelDraftConfig, share: FairShare, slowness: Slowness | None
) -> Proposer:
    """A model's proposer, that translates where the target has another tokenizer.

    Args:
        config: the model, which is loaded here.
        share: how tenants divide its memory.
        slowness: what slows the model down, for experiments.

    Raises:
        InvalidConfigError: The model can't be found, loaded, or used as a draft.
    """
    if config.target_tokenizer is None:
        return _proposer(config, None, share, slowness)
    target = Vocabulary(resolve(config.target_tokenizer))
    translation = translate(target, Vocabulary(resolve(config.model)))
    proposer = _proposer(config, translation.draft_ids, share, slowness)
    return TranslatedProposer(proposer, translation)


def _proposer(
    config: ModelDraftConfig,
    allowed: Collection[int] | None,
    share: FairShare,
    slowness: Slowness | None,
) -> ModelProposer:
    model = load_language_model(resolve(config.model), config, allowed)
    generator = torch.Generator(model.device)
    # Fresh entropy: replicas that drew alike would repeat each other's guesses.
    generator.seed()
    decoder = make_decoder(model, config, generator)
    if slowness is not None:
        model, decoder = SlowedModel(model, slowness), SlowedDecoder(decoder, slowness)
    return ModelProposer(model, config, generator, share=share, decoder=decoder)
