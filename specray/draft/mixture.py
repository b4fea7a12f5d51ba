"""A model's distribution mixed with what others say, such as the request's own text.

Exactness. What is mixed, and how much, depends on the tokens before the place, a draft's own ones
among them, and on what earlier commits have taught; never on the token that is then drawn there.
The token is drawn from the mixture, and the mixture is what is shipped. So the output keeps the
target's distribution.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from specray.draft.ngram_model import Opinion
from specray.draft.session import Session


class Expert(Protocol):
    """Has an opinion on what comes next."""

    def opinion(self, session: Session, drafted: Sequence[int]) -> Opinion | None:
        """Part of the distribution behind a session's tokens and those drafted beyond them.

        Its share must not depend on anything that comes later; None is no opinion.
        """
        ...


class _Part(NamedTuple):
    """What is added to one row."""

    columns: list[int]
    values: list[float]
    left: float  # what the model's own probabilities are scaled by


class Mixture:
    """Mixes experts' opinions into a model's logits."""

    def __init__(self, experts: Sequence[Expert], vocab_size: int, head: Tensor | None) -> None:
        """Takes the experts; each is mixed into what those before it made.

        Args:
            experts: at least one.
            vocab_size: of the model.
            head: [columns], the tokens that its logits are for; None: all.
        """
        self._experts = experts
        self._columns = np.arange(vocab_size)
        if head is not None:
            self._columns = np.full(vocab_size, -1)
            self._columns[head.cpu().numpy()] = np.arange(len(head))

    def mix(
        self,
        logits: Tensor,  # [rows, columns]
        sessions: Sequence[Session],
        drafted: Sequence[Sequence[int]],
    ) -> Tensor:
        """Logits of the mixtures at temperature 1, [rows, columns] float32.

        Args:
            logits: what the model says of the next token.
            sessions: of the rows.
            drafted: what was drafted beyond each session's tokens so far.
        """
        parts = [self._part(s, beyond) for s, beyond in zip(sessions, drafted, strict=True)]
        if not any(part.columns for part in parts):
            return logits
        rows = [row for row, part in enumerate(parts) for _ in part.columns]
        columns = [column for part in parts for column in part.columns]
        values = torch.tensor([value for part in parts for value in part.values])
        left = torch.tensor([part.left for part in parts]).to(logits.device)
        mixed = logits.float().softmax(dim=1) * left.unsqueeze(1)
        where = torch.tensor([rows, columns]).to(logits.device)
        return mixed.index_put_(tuple(where), values.to(logits.device), accumulate=True).log()

    def _part(self, session: Session, drafted: Sequence[int]) -> _Part:
        part = _Part([], [], 1.0)
        for expert in self._experts:
            opinion = expert.opinion(session, drafted)
            if opinion is not None:
                part = self._with(part, opinion)
        return part

    def _with(self, part: _Part, opinion: Opinion) -> _Part:
        is_known = opinion.token_ids < len(self._columns)  # the target may know further ones
        columns = self._columns[np.where(is_known, opinion.token_ids, 0)]
        is_known &= columns >= 0
        values = opinion.probabilities[is_known]
        rest = 1.0 - float(values.sum())
        return _Part(
            part.columns + columns[is_known].tolist(),
            [value * rest for value in part.values] + values.tolist(),
            part.left * rest,
        )
