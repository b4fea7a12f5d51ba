"""What a replica of ours tells the plug-ins in its engine core."""

from specray.config.base import Settings
from specray.config.observability import LogFileConfig, ObservabilityConfig
from specray.types import DataPath, SpeculationPolicy


class TargetPluginConfig(Settings):
    """How a target speculates: what all of its replicas' engine cores are told."""

    max_depth: int
    has_drafts: bool = True  # outside the target; else its own drafter and copies are all there is
    policy: SpeculationPolicy
    trust_draft_distributions: bool
    data_path: DataPath = "relay"
    stall_timeout_s: float = 1.0  # on a direct data path; else routers look after drafts
    ngrams: str | None = None  # folder of the drafts' table, for the stop-gap
    shared_tokens: int = 0  # of earlier answers, for the same
    shared_between_tenants: bool = False
    observability: ObservabilityConfig = ObservabilityConfig()


class EngineCoreConfig(Settings):
    """What one replica tells its engine core."""

    plugin: TargetPluginConfig
    listen_host: str = "127.0.0.1"  # of its stream server
    log_file: LogFileConfig | None = None
    instance: str = ""  # the replica's id
