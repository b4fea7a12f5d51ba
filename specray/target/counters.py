"""What a target counts of its steps, look-ups and verifications."""

import copy
from dataclasses import replace

from specray.control.planner import Planner
from specray.target.buffer import ProposalBuffer
from specray.target.session import Session
from specray.target.verified import Piece
from specray.types import SourceStats
from specray.wire.stats import CalibrationStats, RooflineStats, TargetStats


class Counters:
    """Written by the engine's thread; `snapshot` may be called from another."""

    def __init__(self, buffer: ProposalBuffer) -> None:
        """Takes the buffer whose look-ups are counted."""
        self._buffer = buffer
        self.stats = TargetStats()

    def count_lookup(self, session: Session) -> None:
        """Whether the session finds a proposal without waiting, and what became of an earlier one.

        To be called once a step, before it is held back.
        """
        self.count_overdue(session)
        if not session.is_due:
            return
        proposal = self._buffer.peek(session.session_id)
        if proposal is not None and proposal.token_ids:
            session.num_hits += 1
            self.stats.num_hits += 1
        elif not self._buffer.is_settled(session.session_id):
            session.overdue_at = len(session.token_ids)

    def count_overdue(self, session: Session) -> None:
        """What became of a proposal that was not there for its step; also at the session's end."""
        if session.overdue_at is None:
            return
        if self._buffer.was_answered(session.session_id, session.overdue_at):
            session.num_late += 1
            self.stats.num_late += 1
        else:
            session.num_absent += 1
            self.stats.num_absent += 1
        session.overdue_at = None

    def count_verification(self, piece: Piece) -> None:
        """Tokens that a step verified, if it got to them, at their places among their source's."""
        if not piece.is_reached:
            return
        counts = self.stats.sources.setdefault(piece.offer.source, SourceStats())
        num_proposed, num_accepted = piece.offer.max_depth, piece.accepted.num_tokens
        counts.num_proposed += num_proposed
        counts.num_accepted += num_accepted
        _count_positions(counts.proposed_per_position, num_proposed)
        _count_positions(counts.accepted_per_position, num_accepted)

    def snapshot(self, planner: Planner, num_open_sessions: int) -> TargetStats:
        """All counters as they are now."""
        now = self.stats
        sources = now.sources.copy()  # in one piece: the engine's thread may be adding one
        return replace(
            now,
            sources={source: copy.deepcopy(counts) for source, counts in sources.items()},
            step_time=now.step_time.copy(),
            wait_time=now.wait_time.copy(),
            turnaround_time=now.turnaround_time.copy(),
            num_open_sessions=num_open_sessions,
            calibration=_calibration(planner),
            roofline=_roofline(planner),
            step_time_error=planner.step_time.median_error,
            prospect=planner.prospect,
        )


def _calibration(planner: Planner) -> CalibrationStats:
    seen = planner.survival.calibration
    return CalibrationStats(
        seen.num_tokens.tolist(), seen.num_accepted.tolist(), seen.sum_predicted.tolist()
    )


def _roofline(planner: Planner) -> RooflineStats:
    intensity = planner.intensity()
    if intensity is None:
        return RooflineStats()
    return RooflineStats(*intensity, planner.hardware)


def _count_positions(counts: list[int], depth: int) -> None:
    counts.extend([0] * (depth - len(counts)))
    for position in range(depth):
        counts[position] += 1
