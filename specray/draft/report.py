"""What a draft reports of itself with each heartbeat."""

from collections.abc import Callable

from specray.control.reports import DraftReport, Window
from specray.draft.engine import EngineStats


class DraftReporter:
    """Makes a draft's reports from its engine's counters."""

    def __init__(self, deployment: str, clock: Callable[[], float]) -> None:
        self._deployment = deployment
        self._window: Window[EngineStats] = Window(clock)

    def report(self, stats: EngineStats) -> DraftReport:
        """The report after these counters."""
        samples = self._window.add(stats)
        before, seconds = samples[0].counters, max(1e-9, samples[-1].at_s - samples[0].at_s)
        busy_s, ahead_s = stats.busy_s - before.busy_s, stats.ahead_s - before.ahead_s
        num_proposals = stats.num_proposals - before.num_proposals
        return DraftReport(
            deployment=self._deployment,
            num_sessions=stats.num_open_sessions,
            utilisation=min(1.0, busy_s / seconds),
            needed=min(1.0, max(0.0, busy_s - ahead_s) / seconds),
            answers_per_s=num_proposals / seconds,
            tokens_per_answer=(stats.num_proposed - before.num_proposed) / max(1, num_proposals),
            queue_s=(stats.queued_s - before.queued_s) / max(1, num_proposals),
            answer_fixed_s=stats.answer_fixed_s,
            answer_each_s=stats.answer_each_s,
        )
