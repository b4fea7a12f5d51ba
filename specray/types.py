"""What crosses the boundaries between router, draft and target. Knows no framework."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Source = Literal["model", "prompt_lookup"]
"""Where a proposal's tokens come from; a label of the metrics."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How the target turns logits into a token, as far as a draft can mirror it."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 keeps every token
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        """Whether the target takes the most likely token."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A request that wants proposals, from its first token or from the middle of its answer."""

    session_id: int  # unique on the stream that carries it
    token_ids: tuple[int, ...]  # prompt, then whatever has been committed already
    num_prompt_tokens: int
    sampling: SamplingSettings
    depth: int  # most tokens a proposal may hold; 0 keeps the session without proposals


@dataclass(frozen=True, slots=True)
class Commit:
    """What a verification added to a request: the accepted tokens and one more.

    `position` is the request's length in tokens *before* the commit; a session whose length
    differs has missed something and must be reopened.
    """

    session_id: int
    position: int
    token_ids: tuple[int, ...]
    depth: int  # most tokens the next proposal may hold; 0: none wanted for now
    sent_at_ns: int  # the target's monotonic clock; comes back in the proposal


@dataclass(frozen=True, slots=True, eq=False)
class TruncatedDistributions:
    """For each proposed token, the distribution it was drawn from: its support and probabilities.

    Every row sums to 1; unused columns hold token 0 with probability 0.
    """

    token_ids: NDArray[np.int32]  # [depth, support]
    probabilities: NDArray[np.float32]  # [depth, support]

    def __len__(self) -> int:
        return len(self.token_ids)

    def prefix(self, depth: int) -> "TruncatedDistributions":
        """The first `depth` rows."""
        return TruncatedDistributions(self.token_ids[:depth], self.probabilities[:depth])


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Tokens guessed for one request, keyed by what they extend: a length and a last token."""

    session_id: int
    position: int  # length in tokens of the request that `token_ids` extends
    last_token_id: int  # the token at `position - 1`
    token_ids: tuple[int, ...]  # at most the session's depth; may be empty: nothing to propose
    source: Source
    distributions: TruncatedDistributions | None = None  # None: treat each token as a point mass
    commit_sent_at_ns: int = 0  # `Commit.sent_at_ns` of the commit that this answers
    draft_time_us: int = 0  # from the commit's arrival at the draft to the proposal's departure
    covers_outcomes: bool = False  # what would follow any verification of it has been sent too


@dataclass(frozen=True, slots=True)
class SessionFrame:
    """One step's news about many requests, from a target to a draft. Applied in field order."""

    opens: tuple[OpenSession, ...] = ()
    commits: tuple[Commit, ...] = ()
    closes: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.opens or self.commits or self.closes)


@dataclass(frozen=True, slots=True)
class ProposalFrame:
    """One step's proposals for many requests, from a draft to a target."""

    proposals: tuple[Proposal, ...] = ()
    lost: tuple[int, ...] = ()  # sessions that no draft holds any more: open them again

    def __bool__(self) -> bool:
        return bool(self.proposals or self.lost)


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    """The part of the configuration that may change while requests run."""

    is_enabled: bool = True
    max_depth: int = 5
    max_wait_ms: float = 20.0  # longest that a step may wait for proposals that are due


@dataclass(slots=True)
class SourceStats:
    """Counts of one proposal source since the start."""

    num_proposed: int = 0  # tokens that were verified
    num_accepted: int = 0
    proposed_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
