"""From the configuration to the proposer it asks for."""

import torch

from specray.config import DraftConfig
from specray.draft.causal_lm import load_causal_lm
from specray.draft.model import ModelProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.errors import InvalidConfigError


def make_proposer(config: DraftConfig) -> Proposer:
    """The proposer of `config.method`; a model is loaded here.

    Raises:
        InvalidConfigError: the model can't be loaded, or is none that can draft.
    """
    if config.method == "prompt_lookup":
        return PromptLookup(config.prompt_lookup)
    if config.model is None:
        raise InvalidConfigError("draft.model: name the model that drafts")
    model = load_causal_lm(config.model.model, config.model)
    generator = torch.Generator(device=model.device)
    generator.seed()  # a draft's luck is nobody's to repeat; outputs depend on the target's seed
    return ModelProposer(model, config.model, generator)
