"""A continuation drafted ahead for one outcome of a verification."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specray.draft.attention import CachedRow
from specray.draft.model_session import ModelSession
from specray.types import Proposal, TruncatedDistributions


@dataclass(slots=True, eq=False)
class Branch:
    """What follows if so many tokens are accepted and this one is added.

    The keys and values of all before the added token are its session's; its own begin with that
    token's. Each pass computes one more token's and draws the next token.
    """

    session: ModelSession
    start: int  # the request's length when the verification begins
    num_accepted: int
    added: int
    probability: float
    depth: int  # tokens to draft
    tail: Tensor  # [layers, 2 * kv_heads, at least depth, dim]
    num_sent: int = 0  # of its tokens
    is_closed: bool = False  # no pass adds to it any more
    token_ids: list[int] = field(default_factory=list)
    _supports: list[NDArray[np.int32]] = field(default_factory=list)
    _probabilities: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def num_shared(self) -> int:
        """The session's tokens that it continues, accepted ones included."""
        return self.start + self.num_accepted

    @property
    def position(self) -> int:
        """The request's length when its outcome has come."""
        return self.num_shared + 1

    @property
    def is_complete(self) -> bool:
        """Whether it grows no more: it is as deep as it shall be, or was left as it is."""
        return self.is_closed or len(self.token_ids) >= self.depth

    @property
    def has_news(self) -> bool:
        """Whether it has tokens that were not sent."""
        return len(self.token_ids) > self.num_sent

    @property
    def next_token_id(self) -> int:
        """What the next pass computes."""
        return self.token_ids[-1] if self.token_ids else self.added

    @property
    def candidates(self) -> TruncatedDistributions:
        """What each of its tokens was chosen from, [tokens, support]."""
        return TruncatedDistributions(np.stack(self._supports), np.stack(self._probabilities))

    @property
    def key(self) -> tuple[int, int]:
        """The outcome: accepted tokens, added token."""
        return self.num_accepted, self.added

    def row(self) -> CachedRow:
        """The keys and values of its next pass."""
        num_cached = self.num_shared + len(self.token_ids)
        return CachedRow(
            self.session.states, num_cached, num_cached + 1, self.tail, self.num_shared
        )

    def append(
        self, token_id: int, support: NDArray[np.int32], probabilities: NDArray[np.float32]
    ) -> None:
        """Takes what a pass has drawn."""
        self.token_ids.append(token_id)
        self._supports.append(support)
        self._probabilities.append(probabilities)

    def send(self) -> Proposal:
        """The proposal so far, to be sent before its outcome has come."""
        self.num_sent = len(self.token_ids)
        is_greedy = self.session.sampling.is_greedy
        return self.session.ahead(
            self.position,
            self.added,
            self.token_ids,
            "model",
            None if is_greedy else self.candidates,
            self.candidates.largest() if is_greedy else (),
        )
