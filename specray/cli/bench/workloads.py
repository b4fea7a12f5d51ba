"""The prompts that are measured: our own, ten or more per kind of work."""

import json
from importlib.resources import files
from itertools import zip_longest

WORKLOADS = ("chat", "summarising", "code")
MIXED = "mixed"
"""All of them, one after the other in turn."""


def load_prompts(workload: str) -> list[str]:
    """The user messages of one workload, or of all, always in the same order."""
    if workload == MIXED:
        kinds = [load_prompts(kind) for kind in WORKLOADS]
        return [prompt for turn in zip_longest(*kinds) for prompt in turn if prompt is not None]
    lines = files("specray.cli.bench").joinpath(f"prompts/{workload}.jsonl").read_text("utf-8")
    return [json.loads(line)["prompt"] for line in lines.splitlines()]
