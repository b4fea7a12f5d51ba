"""A session whose next commit is being prepared for."""

from dataclasses import dataclass, field

from specray.draft.attention import CachedRow
from specray.draft.branch import Branch
from specray.draft.model_session import ModelSession
from specray.draft.outcomes import InFlight, Outcome
from specray.draft.pace import Rhythm
from specray.types import Proposal, TruncatedDistributions


@dataclass(slots=True, eq=False)
class Followed:
    """A session, what is in flight for it, and what is drafted for its outcomes."""

    session: ModelSession
    flight: InFlight
    num_fed: int  # of the flight's tokens: their keys and values are the session's
    is_answered: bool  # the target has the flight's proposal
    rhythm: Rhythm  # of the session's target
    branches: dict[tuple[int, int], Branch] = field(default_factory=dict)
    left_out: frozenset[Outcome] = frozenset()
    takes_bonus: bool = True  # there is room to compute what follows the flight's last token
    # The flight's outcomes by falling probability, with the accepted tokens' number and the token
    # added, once they were asked for.
    likeliest: list[tuple[float, int, int]] | None = None
    is_rest: bool = False  # the flight's tokens are what is left of an earlier one
    is_silent: bool = False  # its commit, answered ahead, is owed an answer by what routers know
    began_s: float = 0.0  # when the flight's proposal was answered

    @property
    def verified_rate(self) -> float:
        """How often a proposal like the flight's is there when its step begins."""
        return self.rhythm.verified_rate(was_ahead=self.flight.was_ahead)

    @property
    def stop(self) -> int:
        """The request's length if all that is in flight is accepted, and nothing added."""
        return len(self.session) + len(self.flight.token_ids)

    @property
    def is_complete(self) -> bool:
        """Whether outcomes have been begun, and none grows any more."""
        return bool(self.branches) and all(b.is_complete for b in self.branches.values())

    @property
    def num_unscored(self) -> int:
        """Places, the one behind the flight included, for which there are no candidates yet."""
        return len(self.flight.token_ids) + 1 - len(self.flight.candidates)

    @property
    def num_to_feed(self) -> int:
        """Tokens before the flight's end that are not computed yet, or not scored.

        At least 1 where the bonus is not known.
        """
        num_lacking = self.stop - self.session.num_cached - self.num_fed
        return max(self.num_unscored, num_lacking)

    def to_feed(self) -> list[int]:
        """These tokens."""
        num_committed = max(0, self.num_to_feed - len(self.flight.token_ids))
        committed = self.session.token_ids[len(self.session) - num_committed :]
        return [*committed, *self.flight.token_ids][-self.num_to_feed :]

    def row(self) -> CachedRow:
        """The keys and values of a pass that computes `to_feed`."""
        return CachedRow(self.session.states, self.stop - self.num_to_feed, self.stop)

    def send(self) -> list[Proposal]:
        """What there is of continuations and was not sent; they may go on growing."""
        return [branch.send() for branch in self.branches.values() if branch.has_news]

    def close(self) -> list[Proposal]:
        """The same, of continuations that are left as they are.

        An empty proposal if nothing at all is sent after a commit whose answer was sent ahead:
        silence would look like a stall.
        """
        for branch in self.branches.values():
            branch.is_closed |= bool(branch.token_ids)
        sent = self.send()
        if self.is_silent and not any(branch.num_sent for branch in self.branches.values()):
            sent.append(self.session.proposal((), "model"))
        self.is_silent = False
        return sent

    def take_scores(self, drawn: TruncatedDistributions, start: int) -> None:
        """Takes what that pass says may stand where: its distributions from row `start` on."""
        flight, stop = self.flight, start + self.num_unscored
        self.num_fed = len(flight.token_ids)
        self.session.set_cached(len(self.session), ahead=flight.token_ids)
        flight.candidates = flight.candidates.followed_by(drawn.prefix(stop).rest(start))
        self.likeliest = None
