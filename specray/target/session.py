"""What the target keeps about one request that may speculate."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from specray.control.acceptance import AcceptanceRate, request_acceptance
from specray.control.survival import Offer
from specray.types import Accepted, SamplingSettings, Source

_FEW_ANSWERS = 16  # after which, with a share of its tokens, a session's losses are forgotten
_ANSWERS_PER_TOKEN = 1 / 64  # drafts read some hundred tokens in the time of a proposal


class TokenSequence(Protocol):
    """The tokens of a request, as vLLM's `Request.all_token_ids` shows them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> list[int]: ...


@dataclass(slots=True)
class Session:
    """One request, the router whose drafts it has, and what is known about its proposals."""

    session_id: int
    router: str  # empty while there is none for one that any router may have
    token_ids: TokenSequence  # grows as the engine commits
    num_prompt_tokens: int
    max_length: int  # prompt and answer, in tokens
    max_depth: int  # the request's own cap
    sampling: SamplingSettings
    uses_distributions: bool
    request_id: str = ""  # for logs and traces
    traceparent: str = ""  # the span that its draft's is part of
    tenant: str = ""  # whom it is for
    is_any_routers: bool = False  # came past the routers: whichever is there may have it
    is_shareable: bool = True  # whether its answer may be proposed to others
    min_length: int = 0  # prompt and answer, in tokens: a shorter answer may not end
    acceptances: dict[Source, AcceptanceRate] = field(
        default_factory=lambda: defaultdict(request_acceptance)
    )  # a hybrid's copies go further than its model's guesses, or less far
    source: Source = "prompt_lookup"  # of its latest proposal, or others', and perhaps of the next
    answer_source: Source | None = None  # of its latest that was neither drafted ahead nor a copy
    num_unanswered: int = 0  # commits that asked for a proposal since then
    is_announced: bool = False  # its router's draft has, or will have, its first tokens
    num_told: int = 0  # how many of them; it lags behind while nobody asks it for proposals
    accepted: list[Accepted] = field(default_factory=list)  # that its router has not heard of
    verifying: Offer | None = None  # of which the latest step that verified any took the first
    is_due: bool = False  # a commit asked for a proposal that has neither come nor been missed
    is_awaited: bool = False  # and the coming step is to be held back for it
    is_resumed: bool = False  # its latest commit asks for a proposal, the one before did not
    wanted_depth: int = 0
    committed_at: float = 0.0  # when its latest commit left
    was_late: bool = False  # nothing has come for its step, or only what was sent ahead too late
    num_hits: int = 0  # steps whose proposal was there when they were scheduled
    num_late: int = 0  # whose proposal came while they were held back, or later
    num_absent: int = 0  # whose proposal never came
    overdue_at: int | None = None  # the length whose proposal had not come when its step began
    num_unheard: int = 0  # commits that asked for a proposal, since anything came
    num_silent: int = 0  # waits for its proposals that were in vain, since it was heard of
    num_losses: int = 0  # drafts that let go of it, since one held it for long
    num_answers: int = 0  # proposals with tokens, since a draft last let go of it
    announced_from: int = 0  # the length from which it may be announced again

    def note_answer(self) -> None:
        """A draft proposes something; after enough of that earlier losses are forgotten.

        One that holds the session for a few steps at a time brings less than the announcements
        cost, each of which has it read everything anew.
        """
        self.num_answers += 1
        if self.num_answers >= _FEW_ANSWERS + len(self.token_ids) * _ANSWERS_PER_TOKEN:
            self.num_losses = 0

    def note_loss(self) -> None:
        """A draft let go of it."""
        self.num_losses += 1
        self.num_answers = self.num_unheard = 0

    def room(self) -> int:
        """Draft tokens that could still become part of the answer: the last is never one."""
        return max(0, self.max_length - len(self.token_ids) - 1)

    def cap(self, policy_depth: int) -> int:
        """Most draft tokens worth verifying now.

        vLLM 0.29 forbids stop tokens behind the last draft token by the length before the step, so
        a step that begins where the answer may not end must not reach where it may.
        """
        most = min(self.max_depth, policy_depth, self.room())
        num_forbidden = self.min_length - len(self.token_ids)
        return min(most, num_forbidden - 1) if num_forbidden > 0 else most
