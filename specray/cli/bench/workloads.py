"""The prompts that are measured: our own, ten or more per kind of work."""

import json
from importlib.resources import files

WORKLOADS = ("chat", "summarising", "code")


def load_prompts(workload: str) -> list[str]:
    """The user messages of one workload, always in the same order."""
    lines = files("specray.cli.bench").joinpath(f"prompts/{workload}.jsonl").read_text("utf-8")
    return [json.loads(line)["prompt"] for line in lines.splitlines()]
