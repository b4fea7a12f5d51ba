"""`user_config` of the deployments: what changes without a restart."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, field_validator

from specray.config.base import MAX_DEPTH, MAX_WAIT_MS, Settings
from specray.config.draft import SimulationConfig
from specray.config.speculation import DepthRuleConfig
from specray.types import SpeculationPolicy


class LivePolicyConfig(Settings):
    """`user_config` of the controller deployment: changes without a restart."""

    is_enabled: bool = Field(
        True, description="`false` stops speculation for all requests within seconds."
    )
    max_depth: int | None = Field(
        None, ge=0, le=MAX_DEPTH, description="A lower one than `speculation.max_depth`."
    )
    max_wait_ms: PositiveFloat | None = Field(
        None, le=MAX_WAIT_MS, description="Instead of `speculation.max_wait_ms`."
    )
    depth_policy: DepthRuleConfig | None = Field(
        None, description="Instead of `speculation.depth_policy`."
    )
    is_frozen: bool = Field(
        False, description="Hold what the slow loop has decided, until this is taken back."
    )
    num_replicas: dict[str, NonNegativeInt] = Field(
        default_factory=dict,
        description="Replicas by deployment, chosen by hand, within Serve's bounds.",
    )
    max_fan_out: NonNegativeInt | None = Field(
        None, description="Ceiling of `draft.model.fan_out`, chosen by hand."
    )
    stop_gap: bool | None = Field(None, description="Instead of `speculation.stop_gap`.")

    def apply(self, start: SpeculationPolicy) -> SpeculationPolicy:
        """The policy that results when these settings replace those of the start."""
        depth = start.max_depth if self.max_depth is None else min(self.max_depth, start.max_depth)
        wait_ms = start.max_wait_ms if self.max_wait_ms is None else self.max_wait_ms
        rule = self.depth_policy or start.depth_rule
        stop_gap = start.has_stop_gap if self.stop_gap is None else self.stop_gap
        return SpeculationPolicy(self.is_enabled, depth, wait_ms, rule, stop_gap)


class LiveDraftConfig(Settings):
    """`user_config` of the draft deployment: changes without a restart."""

    sources: tuple[Literal["prompt_lookup", "ngram", "model"], ...] = Field(
        ("prompt_lookup", "ngram", "model"),
        description="Which sources of a draft with several may propose; at least one.",
    )
    simulation: SimulationConfig | None = Field(
        None, description="Instead of `draft.simulation`, which has to be there at the start."
    )

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # Not by `min_length`: of a misspelt one it says that there are 0, and not its name.
        if not value:
            raise ValueError("name at least one source; `is_enabled: false` stops them all")
        return value
