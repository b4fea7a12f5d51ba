"""Two queued frames in one message, where applying it still means applying one after the other."""

from specray.types import ProposalFrame, SessionFrame


def merge_session_frames(first: SessionFrame, second: SessionFrame) -> SessionFrame | None:
    """Both frames in one, or None if the second must come after the first.

    A frame's opens are applied before its commits and closes, so what the first says about a
    session may not be overtaken by what the second says.
    """
    closed = set(first.closes)
    if closed and any(commit.session_id in closed for commit in second.commits):
        return None
    if second.opens:
        touched = closed.union(commit.session_id for commit in first.commits)
        if any(session.session_id in touched for session in second.opens):
            return None
    return SessionFrame(
        first.opens + second.opens, first.commits + second.commits, first.closes + second.closes
    )


def merge_proposal_frames(first: ProposalFrame, second: ProposalFrame) -> ProposalFrame | None:
    """Both frames in one, or None if the second proposes for a session the first has lost."""
    lost = set(first.lost)
    if lost and any(proposal.session_id in lost for proposal in second.proposals):
        return None
    drafts = first.drafts if second.drafts is None else second.drafts
    return ProposalFrame(first.proposals + second.proposals, first.lost + second.lost, drafts)
