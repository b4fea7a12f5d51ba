"""What the draft service asks of anything that proposes tokens."""

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from specray.draft.outcomes import Outcome
from specray.types import Commit, OpenSession, Proposal


class Proposer(Protocol):
    """Follows sessions and guesses how they go on. Used from one thread; ids are its owner's.

    A session that `open` or `commit` rejects is gone, like one that `take_evicted` names.
    """

    def open(self, session: OpenSession) -> None:
        """Starts to follow a session, replacing one of the same id.

        Raises:
            SessionRejectedError: The session can't be held; the message says why.
        """
        ...

    def commit(self, commit: Commit) -> None:
        """Extends a session by what its verification added.

        Raises:
            SessionRejectedError: The session is unknown, or has missed a commit.
        """
        ...

    def close(self, session_id: int) -> None:
        """Forgets a session; unknown ids are ignored."""
        ...

    def propose(self, session_ids: Sequence[int]) -> list[Proposal]:
        """One proposal per session, each within the depth its last commit asked for.

        A session that has nothing to propose gets an empty proposal. Behind a proposal may stand
        those for its outcomes, drafted ahead; see `Proposal.covers_outcomes`. All ids must be open.

        Sessions that take longer may be left out while others are answered: those answers are sent
        at once, and the sessions left out are asked for again. None at all is no answer to anyone.
        """
        ...

    def work(self) -> bool:
        """Does a little of what can wait, such as a long prefill; whether there is more.

        Called between proposals, for as long as there is more: its time is what they wait.
        """
        ...

    def take_evicted(self) -> list[int]:
        """Sessions dropped to make room since the last call."""
        ...


@runtime_checkable
class DraftsAhead(Protocol):
    """What a proposer has that goes on drafting in `work`; see `specray.draft.ahead`.

    It may leave sessions without an answer whose target has one already, or does not wait for one
    (`Commit.is_unawaited`): their next proposals come from here.
    """

    def take_ahead(self) -> list[Proposal]:
        """What `work` has drafted for outcomes that are not yet known, since the last call.

        For one outcome it may come again, longer; it then begins as before.
        """
        ...

    def leave_out(self, session_id: int, outcomes: Collection[Outcome]) -> None:
        """Drafts nothing for these outcomes of the session's next commit.

        Args:
            session_id: An open session.
            outcomes: Lengths and last tokens that the request would have.
        """
        ...


@runtime_checkable
class FollowsOthers(Protocol):
    """What a proposer has that drafts ahead also for what others propose."""

    def follow(self, session_id: int, token_ids: Sequence[int]) -> None:
        """Prepares for the outcomes of these tokens, which somebody else has proposed.

        Args:
            session_id: An open session, whose last commit they follow.
            token_ids: The proposal's; may be none.
        """
        ...

    def drop_ahead(self, session_id: int) -> None:
        """Forgets what was prepared for the session, and what its target was taken to have."""
        ...

    def is_answered(self, session_id: int) -> bool:
        """Whether the session's last commit has its answer, drafted ahead or somebody else's."""
        ...

    def take_partial(self, session_id: int) -> Proposal | None:
        """What has been drafted for the session's last commit but not sent, if anything."""
        ...


@runtime_checkable
class TellsWork(Protocol):
    """What a proposer has that says whom it works for; timelines ask it."""

    def worked_for(self) -> Collection[int]:
        """The sessions for which the latest `work` has done something; some may be named twice."""
        ...


@runtime_checkable
class LimitsFanOut(Protocol):
    """What a proposer has whose drafting ahead may be bounded while it runs."""

    def limit_fan_out(self, most: int) -> None:
        """Prepares for at most so many outcomes per session; called from any thread."""
        ...
