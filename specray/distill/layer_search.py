"""Step (c): which layers of the target make the student, by what their loss costs."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specray.distill.student import layers_of

logger = logging.getLogger(__name__)

_PAIRS_ABOVE = 16  # while more layers than this are left, two go at a time


class Probe(NamedTuple):
    """A little text, and what the whole target says about it."""

    token_ids: Tensor  # [rows, width]
    logprobs: Tensor  # [rows, width, columns]


class Candidate(NamedTuple):
    """Some layers and how far they are from the target."""

    layers: tuple[int, ...]
    kl: float  # nats per token


class _Skipped(torch.nn.Module):
    """Stands in for a layer that is left out."""

    def forward(self, hidden: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        return hidden


@torch.inference_mode()
def make_probe(model: Any, token_ids: Tensor, head: Tensor) -> Probe:
    """Runs the whole target once."""
    return Probe(token_ids, _logprobs(model, token_ids, head))


@torch.inference_mode()
def search(
    model: Any, probe: Probe, head: Tensor, num_layers: int, fixed: Sequence[int]
) -> list[Candidate]:
    """Takes away the layer whose loss costs least, again and again.

    Args:
        model: the target; as before when this returns.
        probe: by `make_probe`.
        head: [columns, hidden], weights of the tokens that count.
        num_layers: how many to keep.
        fixed: layers that stay whatever they bring.

    Returns:
        What was left after each round; the last is the choice.
    """
    layers = layers_of(model)
    whole = list(layers)
    kept = list(range(len(whole)))
    rounds: list[Candidate] = []
    try:
        while len(kept) > num_layers:
            costs = sorted(
                (_cost(model, probe, head, whole, [k for k in kept if k != layer]), layer)
                for layer in kept
                if layer not in fixed
            )
            count = 2 if len(kept) > _PAIRS_ABOVE and len(kept) - 2 >= num_layers else 1
            gone = {layer for _, layer in costs[:count]}
            kept = [layer for layer in kept if layer not in gone]
            rounds.append(Candidate(tuple(kept), _cost(model, probe, head, whole, kept)))
            logger.info("layers %s: KL %.2f", kept, rounds[-1].kl)
    finally:
        _install(layers, whole)
    return rounds


def _cost(
    model: Any, probe: Probe, head: Tensor, whole: list[torch.nn.Module], kept: Sequence[int]
) -> float:
    skipped = _Skipped()
    _install(layers_of(model), [m if i in kept else skipped for i, m in enumerate(whole)])
    logprobs = _logprobs(model, probe.token_ids, head)
    return float((probe.logprobs.exp() * (probe.logprobs - logprobs)).sum(-1).mean())


def _install(layers: torch.nn.ModuleList, modules: Sequence[torch.nn.Module]) -> None:
    for index, module in enumerate(modules):
        layers[index] = module


def _logprobs(model: Any, token_ids: Tensor, head: Tensor) -> Tensor:
    hidden = model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
    return (hidden @ head.T.to(hidden.dtype)).float().log_softmax(-1)
