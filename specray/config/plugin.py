"""What a replica of ours tells the plug-ins in its vLLM."""

from specray.config.base import Settings
from specray.types import DataPath, SpeculationPolicy


class TargetPluginConfig(Settings):
    """What the target's replica tells the vLLM plug-ins, through vLLM's `additional_config`."""

    max_depth: int
    has_drafts: bool = True  # outside the target; else its own drafter and copies are all there is
    policy: SpeculationPolicy
    trust_draft_distributions: bool
    hardware: str = "auto"
    timeline: str | None = None
    data_path: DataPath = "relay"
    stall_timeout_s: float = 1.0  # on a direct data path; else routers look after drafts
    ngrams: str | None = None  # folder of the drafts' table, for the stop-gap
    shared_tokens: int = 0  # of earlier answers, for the same
    shared_between_tenants: bool = False
