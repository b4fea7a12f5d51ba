"""A draft's head, cut down to the tokens that its target really uses.

Much of what a small draft reads for a token is its head. A token that is left out is never
proposed, which costs acceptance and nothing else.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specray.errors import InvalidConfigError
from specray.models.draft_layers import DRAFT_FILE

_FIELD = "head_token_ids"


def read_head_token_ids(path: str, vocab_size: int, most: int | None) -> Tensor | None:
    """The tokens that the head is to keep, [columns]; None if there is no list of them.

    Args:
        path: the draft's folder; a hub id has no list.
        vocab_size: the draft's.
        most: how many of the listed to keep, from the first on; None keeps them all.

    Raises:
        InvalidConfigError: The list is broken, or there is none for `most` to shorten.
    """
    file = Path(path) / DRAFT_FILE
    token_ids = _read(file).get(_FIELD) if file.is_file() else None
    if token_ids is None:
        if most is not None:
            raise InvalidConfigError(
                f"draft.model.head_tokens is {most}, but {path} has no {DRAFT_FILE} with "
                f"{_FIELD} to choose from; leave it out, or make the draft with `specray distill`"
            )
        return None
    if problem := _problem(token_ids, vocab_size):
        raise InvalidConfigError(f"{file}: {_FIELD} {problem}; make the draft anew, or mend it")
    return torch.tensor(token_ids[:most])


def trim_head(model: PreTrainedModel, token_ids: Tensor) -> None:
    """Replaces the model's head by its rows for `token_ids`.

    Raises:
        InvalidConfigError: The model has no head that can be replaced.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise InvalidConfigError(
            f"draft model {type(model).__name__} has no linear head to trim; remove {_FIELD} "
            f"from its {DRAFT_FILE}"
        )
    token_ids = token_ids.to(head.weight.device)
    trimmed = nn.Linear(head.in_features, len(token_ids), head.bias is not None, device="meta")
    trimmed.weight = nn.Parameter(head.weight.detach()[token_ids])
    if head.bias is not None:
        trimmed.bias = nn.Parameter(head.bias.detach()[token_ids])
    model.set_output_embeddings(trimmed)


def _read(file: Path) -> dict[str, Any]:
    try:
        described = json.loads(file.read_text())
    except ValueError as error:
        raise InvalidConfigError(f"{file} is no JSON: {error}; make the draft anew") from error
    if not isinstance(described, dict):
        raise InvalidConfigError(f"{file} must hold an object, not {described!r:.40}")
    return described


def _problem(token_ids: object, vocab_size: int) -> str | None:
    """What is wrong with a list of tokens."""
    if not isinstance(token_ids, list) or not token_ids:
        return "must be a list of at least one token id"
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            return f"holds {token_id!r:.40}, no token id of the draft's {vocab_size}"
    if len(set(token_ids)) < len(token_ids):
        return "holds a token id twice"
    return None
