"""Reports of imagined replicas."""

from typing import Any

from specray.control.reports import DraftReport, TargetReport


def target(**changes: Any) -> TargetReport:
    """A target with four requests whose speculation would double its goodput, were it instant."""
    usual: dict[str, Any] = {
        "deployment": "target:a",
        "num_running": 4.0,
        "num_waiting": 0.0,
        "max_running": 8,
        "kv_usage": 0.2,
        "utilisation": 0.75,
        "requests_per_s": 1.0,
        "tokens_per_s": 50.0,
        "step_s": 0.08,
        "ttft_s": 0.1,
        "tpot_s": 0.06,
        "intensity": 4.0,
        "ridge": 10.0,
        "depth": 3.0,
        "acceptance": 0.7,
        "survivals": (0.8, 0.64, 0.51),
        "asked_per_s": 40.0,
        "hit_rate": 0.0,
        "late_rate": 1.0,
        "miss_rate": 0.0,
        "wait_share": 0.2,
        "relay_s": 0.001,
        "gain": 2.0,
        "gain_step_s": 0.1,
    }
    return TargetReport(**usual | changes)


def idle(**changes: Any) -> TargetReport:
    """A target without requests."""
    return target(num_running=0.0, asked_per_s=0.0, tpot_s=None, ttft_s=None, **changes)


def draft(**changes: Any) -> DraftReport:
    """A draft that answers four commits at a time."""
    usual: dict[str, Any] = {
        "deployment": "draft",
        "num_sessions": 4,
        "utilisation": 0.4,
        "needed": 0.4,
        "answers_per_s": 40.0,
        "tokens_per_answer": 3.0,
        "queue_s": 0.0,
        "answer_fixed_s": 0.0,
        "answer_each_s": 0.01,
    }
    return DraftReport(**usual | changes)
