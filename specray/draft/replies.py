"""What one turn of the engine has to say, gathered into one frame per router."""

from dataclasses import replace

from specray.draft.directory import Address
from specray.draft.inbox import Router
from specray.types import Proposal
from specray.wire.mail import ProposalMail

_MAX_REPORTED = 4096  # beyond, one is reported twice at worst


class Replies:
    """Frames in the making.

    A session is reported lost once, until it is opened again: commits that were on their way
    when it was lost don't report it anew, or each would cost the router another reopening.
    """

    def __init__(self) -> None:
        self._mail = ProposalMail[Router]()
        self._reported: dict[Address, None] = {}  # oldest first; a router may never speak of them

    def add_proposal(self, address: Address, proposal: Proposal, draft_time_us: int) -> None:
        """Adds a proposal, under the router's session id."""
        theirs = replace(proposal, session_id=address.session_id, draft_time_us=draft_time_us)
        self._mail.propose(address.router, theirs)

    def add_lost(self, address: Address) -> None:
        """Reports a session that is not held."""
        if address not in self._reported:
            self._reported[address] = None
            self._mail.lose(address.router, address.session_id)
        if len(self._reported) > _MAX_REPORTED:
            del self._reported[next(iter(self._reported))]

    def forgive(self, address: Address) -> None:
        """A session that is opened or closed may be reported again."""
        self._reported.pop(address, None)

    def forget(self, router: Router) -> None:
        """Drops everything about a router that has gone."""
        self._mail.discard(router)
        self._reported = {a: None for a in self._reported if a.router is not router}

    def send(self) -> None:
        """Sends each router its frame, if there is anything for it."""
        for router, frame in self._mail.take().items():
            router.send(frame)
