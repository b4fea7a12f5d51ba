"""How targets speculate, and what pools are sized for."""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    TypeAdapter,
    field_validator,
    model_validator,
)

from specray.config.base import MAX_DEPTH, MAX_WAIT_MS, Settings
from specray.types import DataPath, DepthRule, GoodputRule, SpeculationPolicy


def _named(rule: Any) -> Any:
    """A rule may be given by its name alone, with its defaults."""
    return {"name": rule} if isinstance(rule, str) else rule


# fmt: off
Hardware = Literal[
    "auto", "H100", "H100-PCIE", "H100-NVL", "H200", "H200-NVL", "B200",
    "A100", "A100-40G", "A100-PCIE", "A100-PCIE-40G", "L40S", "L4", "MI300X",
]
# fmt: on

DepthRuleConfig = Annotated[
    DepthRule, Field(discriminator="name"), BeforeValidator(_named, json_schema_input_type=Any)
]
"""How depths are chosen: a name, or a name and parameters."""

DEPTH_RULE: TypeAdapter[DepthRule] = TypeAdapter(DepthRuleConfig)


class ObjectiveConfig(Settings):
    """What the slow loop sizes pools for. Replicas follow where Serve is told to ask it."""

    goal: Literal["throughput", "latency", "slo"] = Field(
        "throughput",
        description="`throughput`: goodput by what replicas cost; `latency`: goodput of each "
        "request, whatever it costs; `slo`: as few replicas as meet the times below. Only the "
        "sizes of pools follow from it: depths are chosen for goodput under each.",
    )
    tpot_ms: PositiveFloat | None = Field(
        None, description="Mean time of a token after a request's first, for `slo`."
    )
    ttft_ms: PositiveFloat | None = Field(
        None, description="Mean time to a request's first token, for `slo`."
    )
    draft_cost: PositiveFloat = Field(
        0.125,
        description="What a draft replica costs, in target replicas: 0.25 for one GPU beside four.",
    )
    is_limiting: bool = Field(
        False,
        description="Whether the slow loop's ceilings for depth and fan-out hold; they are shown "
        "in any case.",
    )

    @model_validator(mode="after")
    def _check_slo(self) -> "ObjectiveConfig":
        has_times = self.tpot_ms is not None or self.ttft_ms is not None
        if has_times != (self.goal == "slo"):
            raise ValueError(
                "goal `slo` takes tpot_ms, ttft_ms or both, and no other goal takes them"
            )
        return self


def _goal(value: Any) -> Any:
    """An objective may be given by its goal alone."""
    return {"goal": value} if isinstance(value, str) else value


class SpeculationConfig(Settings):
    """Limits that hold for the life of the target, and the policy it starts with.

    `max_depth` sizes vLLM's buffers; the live policy may lower the depth but not exceed it.
    """

    max_depth: int = Field(
        5, ge=0, le=MAX_DEPTH, description="`num_speculative_tokens` of the target's vLLM."
    )
    max_wait_ms: PositiveFloat = Field(
        20.0, le=MAX_WAIT_MS, description="Longest that a step waits for proposals that are due."
    )
    stop_gap: bool = Field(
        True,
        description="Where a step finds no proposal, the target may verify a copy from the "
        "request's own text instead of waiting, or of decoding one token; whichever pays. Where "
        "drafts have n-grams (`draft.ngram`), it may verify guesses from these, too, and copies "
        "from earlier answers where they look these up (`draft.prompt_lookup.shared_tokens`). "
        "Behind a draft's proposal that is shorter than may be verified it goes on the same way. "
        "Only with the depth policy `goodput`, which weighs that.",
    )
    stall_timeout_s: float = Field(
        1.0,
        ge=0.05,
        le=3600.0,
        description="A draft that owes a proposal for longer loses its sessions to another.",
    )
    data_path: DataPath = Field(
        "relay",
        description="How commits and proposals travel: `relay` through the router, or `direct` on "
        "streams from target to draft, where the router only says which drafts there are. Then the "
        "page at `/ui` does not show which tokens of an answer were accepted.",
    )
    listen_host: str = Field(
        "auto",
        description="Address on which replicas accept streams, and by which others reach them; "
        "`auto` is their node's.",
    )
    trust_draft_distributions: bool = Field(
        True,
        description="Use the drafts' distributions for sampled requests. Without, each proposed "
        "token counts as a point mass: exact whatever the draft sends, but accepted less often.",
    )

    depth_policy: DepthRuleConfig = Field(
        GoodputRule(),
        description="How depths are chosen, by name or with parameters; "
        "others than `goodput` are for comparison.",
    )
    hardware: Hardware = Field(
        "auto",
        description="Profile of the target's devices, for the roofline; `auto` finds out.",
    )
    objective: Annotated[ObjectiveConfig, BeforeValidator(_goal, json_schema_input_type=Any)] = (
        Field(ObjectiveConfig(), description="What pools are sized for; a goal alone will do.")
    )

    @field_validator("listen_host")
    @classmethod
    def _check_listen_host(cls, value: str) -> str:
        if value.strip("0.:[]* ") == "":  # any spelling of all addresses, or none
            raise ValueError(
                "must be an address by which others reach a replica, which all of them are not; "
                "leave it at `auto`"
            )
        return value

    @property
    def policy(self) -> SpeculationPolicy:
        """The live policy at start."""
        return SpeculationPolicy(
            max_depth=self.max_depth,
            max_wait_ms=self.max_wait_ms,
            depth_rule=self.depth_policy,
            has_stop_gap=self.stop_gap,
        )
