"""What sessions have to offer to the planner: tokens that are here, or could be asked for."""

from dataclasses import replace

from specray.control.survival import Offer
from specray.target.session import Session
from specray.target.telling import Streams
from specray.types import Proposal, Source


class Offers:
    """Offers under the live policy."""

    def __init__(self, streams: Streams, max_depth: int) -> None:
        """Takes who knows the policy and whose distributions may be used, and the engine's room."""
        self._streams = streams
        self._max_depth = max_depth

    def of_tokens(self, session: Session, num_tokens: int, source: Source | None = None) -> Offer:
        """As many tokens as the session's caps leave of these, of its latest source or another."""
        source = source or session.source
        acceptance, temperature = session.acceptances[source], session.sampling.temperature
        return Offer(acceptance, source, min(self.cap(session), num_tokens), temperature)

    def of_proposal(
        self, session: Session, proposal: Proposal, tail: Proposal | None = None
    ) -> Offer:
        """Tokens that are here, with what their draft was confident of.

        What the target guesses behind them may tell which tokens were drawn, and decides on itself
        alone: `plan_depths` takes no token for the sake of one behind it.

        A sampled request that is verified by its draft's distributions may be cut by these only:
        a confidence that came with them might tell which tokens were drawn.
        """
        offer = self.of_tokens(session, len(proposal.token_ids), proposal.source)
        if tail is not None and offer.max_depth == len(proposal.token_ids):
            offer = offer._replace(tail=self.of_proposal(session, tail))
        q = proposal.distributions
        if q is None or not self.is_trusted(session):
            return offer._replace(confidences=proposal.confidences)
        return offer._replace(confidences=q.largest())

    def cap(self, session: Session) -> int:
        """Most draft tokens that the session may verify now."""
        policy = self._streams.policy
        depth = min(policy.max_depth, self._max_depth)
        return session.cap(depth) if policy.is_enabled else 0

    def may_speculate(self, session: Session) -> bool:
        """Whether the session may verify draft tokens, now or later."""
        policy = self._streams.policy
        most = min(session.max_depth, policy.max_depth, session.room())
        return policy.is_enabled and most > 0

    def is_trusted(self, session: Session) -> bool:
        """Whether distributions that come for the session may be used."""
        return session.uses_distributions and self._streams.trusts(session.router)

    def cut(
        self, session: Session, proposal: Proposal, tail: Proposal | None, depth: int
    ) -> Proposal:
        """The first tokens of a proposal and its tail.

        Without distributions if they may not be used.
        """
        has_distributions = proposal.distributions is not None
        if not has_distributions and depth == len(proposal.token_ids):
            return proposal  # as most are: a copy takes longer than all else here
        if has_distributions and not self.is_trusted(session):
            proposal = replace(proposal, distributions=None)
        if tail is None or depth <= len(proposal.token_ids):
            return proposal.prefix(depth)
        return proposal.followed_by(tail.token_ids[: depth - len(proposal.token_ids)])
