"""From settings to a proposer."""

import torch

from specray.config import DraftConfig
from specray.draft.causal_lm import load_causal_lm
from specray.draft.model import ModelProposer
from specray.draft.prompt_lookup import PromptLookup
from specray.draft.proposer import Proposer
from specray.models.sources import resolve


def make_proposer(config: DraftConfig) -> Proposer:
    """The proposer that `config.method` names; a model is loaded here.

    Raises:
        InvalidConfigError: The model can't be found, loaded, or used as a draft.
    """
    if config.method == "prompt_lookup" or config.model is None:
        return PromptLookup(config.prompt_lookup)
    model = load_causal_lm(resolve(config.model.model), config.model)
    generator = torch.Generator(model.device)
    # Fresh entropy: replicas that drew alike would repeat each other's guesses.
    generator.seed()
    return ModelProposer(model, config.model, generator)
