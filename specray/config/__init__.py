"""The settings a user writes. Unknown keys are errors; every message names its field."""

from specray.config.base import MAX_DEPTH, MAX_FAN_OUT, MAX_SUPPORT, MAX_WAIT_MS
from specray.config.draft import (
    CustomDraftConfig,
    DraftConfig,
    ModelDraftConfig,
    NgramDraftConfig,
    PromptLookupConfig,
    SimulationConfig,
)
from specray.config.live import LiveDraftConfig, LivePolicyConfig
from specray.config.observability import FILE_PREFIX, LogFileConfig, ObservabilityConfig
from specray.config.plugin import EngineCoreConfig, TargetPluginConfig
from specray.config.speculation import (
    DEPTH_RULE,
    DepthRuleConfig,
    ObjectiveConfig,
    SpeculationConfig,
)

__all__ = [
    "DEPTH_RULE",
    "FILE_PREFIX",
    "MAX_DEPTH",
    "MAX_FAN_OUT",
    "MAX_SUPPORT",
    "MAX_WAIT_MS",
    "CustomDraftConfig",
    "DepthRuleConfig",
    "DraftConfig",
    "EngineCoreConfig",
    "LiveDraftConfig",
    "LivePolicyConfig",
    "LogFileConfig",
    "ModelDraftConfig",
    "NgramDraftConfig",
    "ObjectiveConfig",
    "ObservabilityConfig",
    "PromptLookupConfig",
    "SimulationConfig",
    "SpeculationConfig",
    "TargetPluginConfig",
]
