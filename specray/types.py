"""What crosses the boundaries between router, draft and target. Knows no framework."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

StopGapSource = Literal["stop_gap", "stop_gap_shared", "stop_gap_ngram"]
"""What a target proposes by itself when no draft's proposal is there, or behind a short one.

A copy from the request's own text, one from earlier answers, or what n-grams say.
"""

OwnSource = Literal[StopGapSource, "engine"]
"""What drafts inside the target: `engine` is vLLM's own drafter, such as an EAGLE-3 head."""

DraftSource = Literal["model", "ngram", "prompt_lookup"]
"""What drafts outside of it."""

Source = Literal[DraftSource, OwnSource]
"""Where a proposal's tokens come from; a label of the metrics.

Depth is chosen by it, so it must not depend on the tokens that are proposed.
"""

STOP_GAPS: frozenset[Source] = frozenset(get_args(StopGapSource))
DRAFT_SOURCES: frozenset[Source] = frozenset(get_args(DraftSource))
OWN_SOURCES: frozenset[Source] = frozenset(get_args(OwnSource))

DataPath = Literal["relay", "direct"]
"""How commits and proposals travel: through the router, or on streams from target to draft."""

MAX_NAME = 128
"""Characters of a name that is only logged or told apart; a peer may send any number."""


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
    request_id: str = ""  # as the client, or Ray Serve, named the request; for logs and traces
    traceparent: str = ""  # the target's span, as W3C writes it; empty if it is not traced
    tenant: str = ""  # whom the request is for: drafts share their time fairly between tenants
    target: str = ""  # the engine that verifies: drafts learn the pace of each
    is_shareable: bool = True  # whether its answer may be proposed to others


class Accepted(NamedTuple):
    """Proposed tokens that became part of a request."""

    position: int  # of the first of them
    num_tokens: int
    source: Source


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
    accepted: tuple[Accepted, ...] = ()  # since the commit before; for who looks on, not for drafts
    was_late: bool = False  # nothing was there for its step, or only what was sent ahead too late
    is_unawaited: bool = False  # no step is held back for an answer


@dataclass(frozen=True, slots=True, eq=False)
class TruncatedDistributions:
    """For each proposed token, the distribution it was drawn from: its support and probabilities.

    Every row sums to 1; unused columns hold token 0 with probability 0.
    """

    token_ids: NDArray[np.int32]  # [depth, support]
    probabilities: NDArray[np.float32]  # [depth, support]

    @classmethod
    def point_masses(cls, token_ids: Sequence[int]) -> "TruncatedDistributions":
        """Those of tokens that were not drawn, but certain."""
        ids = np.array(token_ids, np.int32)[:, None]
        return cls(ids, np.ones(ids.shape, np.float32))

    def __len__(self) -> int:
        return len(self.token_ids)

    def largest(self) -> tuple[float, ...]:
        """The largest probability of each row: what a draft is confident of at most."""
        return tuple(self.probabilities.max(axis=1).tolist()) if len(self) else ()

    def prefix(self, depth: int) -> "TruncatedDistributions":
        """The first `depth` rows."""
        return TruncatedDistributions(self.token_ids[:depth], self.probabilities[:depth])

    def rest(self, depth: int) -> "TruncatedDistributions":
        """The rows after the first `depth`."""
        return TruncatedDistributions(self.token_ids[depth:], self.probabilities[depth:])

    def followed_by(self, other: "TruncatedDistributions") -> "TruncatedDistributions":
        """The rows of both, as wide as the wider."""
        width = max(self.token_ids.shape[1], other.token_ids.shape[1])
        first, second = self._widened(width), other._widened(width)
        return TruncatedDistributions(
            np.concatenate((first.token_ids, second.token_ids)),
            np.concatenate((first.probabilities, second.probabilities)),
        )

    def _widened(self, width: int) -> "TruncatedDistributions":
        if width == self.token_ids.shape[1]:
            return self  # as most are: padding takes longer than all else here
        unused = ((0, 0), (0, width - self.token_ids.shape[1]))
        return TruncatedDistributions(
            np.pad(self.token_ids, unused), np.pad(self.probabilities, unused)
        )


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
    draft_time_us: int = 0  # from the commit's arrival at the draft to departure; 0: drafted ahead
    covers_outcomes: bool = False  # what would follow any verification of it has been sent too
    confidences: tuple[float, ...] = ()  # of each token, that the target agrees; none: unknown

    def prefix(self, depth: int) -> "Proposal":
        """The first `depth` tokens."""
        return replace(
            self,
            token_ids=self.token_ids[:depth],
            distributions=self.distributions and self.distributions.prefix(depth),
            confidences=self.confidences[:depth],
        )

    def followed_by(self, token_ids: Sequence[int]) -> "Proposal":
        """The proposal, and behind it tokens of which each counts as a point mass."""
        q = self.distributions
        if q is not None:
            q = q.followed_by(TruncatedDistributions.point_masses(token_ids))
        all_ids = (*self.token_ids, *token_ids)
        return replace(self, token_ids=all_ids, distributions=q, confidences=())

    def rest(self, depth: int) -> "Proposal":
        """What follows the first `depth` tokens, once these are the request's."""
        return replace(
            self,
            position=self.position + depth,
            last_token_id=self.token_ids[depth - 1] if depth else self.last_token_id,
            token_ids=self.token_ids[depth:],
            distributions=self.distributions and self.distributions.rest(depth),
            confidences=self.confidences[depth:],
        )


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
    drafts: tuple[str, ...] | None = None  # a router's: speak to these, at "host:port", from now on

    def __bool__(self) -> bool:
        return bool(self.proposals or self.lost or self.drafts is not None)


def _check(is_sound: bool, fault: str) -> None:
    if not is_sound:
        raise ValueError(fault)


@dataclass(frozen=True, slots=True)
class GoodputRule:
    """Depths by expected commits per predicted second, drafts' time counted a little more; ours."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - where it comes from a file

    name: Literal["goodput"] = "goodput"


@dataclass(frozen=True, slots=True)
class FixedRule:
    """The same depth for all requests, always."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: Literal["fixed"] = "fixed"
    depth: int = 3

    def __post_init__(self) -> None:
        _check(self.depth >= 0, f"depth {self.depth} is negative; give 0 or more")


@dataclass(frozen=True, slots=True)
class BatchSizeRule:
    """Depth by the number of requests in the step: vLLM's `num_speculative_tokens_per_batch_size`.

    The default is the schedule of the one who proposed it there (vLLM pull request 32374).
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: Literal["batch_size_table"] = "batch_size_table"
    table: tuple[tuple[int, int, int], ...] = (
        (1, 64, 3),
        (65, 101, 2),
        (102, 165, 1),
    )  # first and last batch size, depth; 0 where there is no entry

    def __post_init__(self) -> None:
        for first, last, depth in self.table:
            _check(
                1 <= first <= last and depth >= 0,
                f"table entry ({first}, {last}, {depth}) is no (first size, last size, depth)",
            )
        gaps = zip(self.table[1:], self.table, strict=False)
        _check(
            all(entry[0] > before[1] for entry, before in gaps),
            "the table's entries overlap or are out of order",
        )


@dataclass(frozen=True, slots=True)
class QpsRule:
    """Depth = max(min_depth, base * (1 - utilisation * adjustment)).

    The base is the run of tokens that are accepted on average, at most `base_depth`; utilisation is
    requests per second over `capacity_qps`.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: Literal["qps_formula"] = "qps_formula"
    base_depth: int = 5
    min_depth: int = 0
    adjustment: float = 1.0
    capacity_qps: float = 10.0

    def __post_init__(self) -> None:
        _check(
            0 <= self.min_depth <= self.base_depth,
            f"min_depth {self.min_depth} is not between 0 and base_depth {self.base_depth}",
        )
        _check(self.capacity_qps > 0, f"capacity_qps {self.capacity_qps} is not positive")
        _check(self.adjustment >= 0, f"adjustment {self.adjustment} is negative")


@dataclass(frozen=True, slots=True)
class AcceptanceRule:
    """One token less when the acceptance rate falls under a threshold, one more above another."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: Literal["acceptance_thresholds"] = "acceptance_thresholds"
    lower: float = 0.4
    upper: float = 0.8
    start_depth: int = 3
    min_depth: int = 1
    max_depth: int = 8
    window: int = 64  # verified tokens between two changes

    def __post_init__(self) -> None:
        _check(
            0 <= self.lower <= self.upper <= 1,
            f"lower {self.lower} and upper {self.upper} are no rates in this order",
        )
        _check(
            1 <= self.min_depth <= self.start_depth <= self.max_depth,
            f"min_depth {self.min_depth}, start_depth {self.start_depth} and max_depth "
            f"{self.max_depth} must ascend from 1 on",
        )
        _check(self.window >= 1, f"window {self.window} is not positive")


DepthRule = GoodputRule | FixedRule | BatchSizeRule | QpsRule | AcceptanceRule
"""How depths are chosen; the others than `goodput` are for comparison."""


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    """The part of the configuration that may change while requests run."""

    is_enabled: bool = True
    max_depth: int = 5
    max_wait_ms: float = 20.0  # longest that a step may wait for proposals that are due
    depth_rule: DepthRule = GoodputRule()
    has_stop_gap: bool = False  # whether a target guesses on a miss, and behind short proposals


@dataclass(slots=True)
class SourceStats:
    """Counts of one proposal source since the start."""

    num_proposed: int = 0  # tokens that were verified
    num_accepted: int = 0
    proposed_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
