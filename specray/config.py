"""The settings a user writes. Unknown keys are errors; every message names its field."""

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from specray.types import Source, SpeculationPolicy

MAX_DEPTH = 64  # far beyond what pays; vLLM's rejection sampler takes 128
MAX_SUPPORT = 256  # of a shipped distribution; the mass beyond is next to nothing
MAX_WAIT_MS = 10_000.0  # a step held back for longer is an outage


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PromptLookupConfig(_Settings):
    """How the model-free draft looks for a continuation in the request's own tokens."""

    max_ngram: PositiveInt = Field(8, description="Longest suffix that is looked for.")
    min_ngram: PositiveInt = Field(
        2,
        description="Shortest suffix whose match is proposed. 1 finds more, but then outcomes "
        "can't all be covered ahead, so that steps wait for answers.",
    )
    shared_tokens: NonNegativeInt = Field(
        0,
        description="Tokens of earlier answers, of all requests of a replica, that are looked up "
        "too; some 2 kB each. Only for requests that may learn of each other.",
    )

    @model_validator(mode="after")
    def _check_range(self) -> "PromptLookupConfig":
        if self.min_ngram > self.max_ngram:
            raise ValueError(
                f"min_ngram {self.min_ngram} is larger than max_ngram {self.max_ngram}; lower it"
            )
        return self


class ModelDraftConfig(_Settings):
    """A small causal language model that shares the target's tokenizer."""

    model: str = Field(description="Folder, hub id, or `bundled:NAME` of a causal LM.")
    target_tokenizer: str | None = Field(
        None,
        description="For a draft with another tokenizer: the target's folder, hub id or "
        "`bundled:NAME`. The draft then proposes only tokens that both vocabularies hold.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    quantization: Literal["auto", "none", "int8"] = Field(
        "auto", description="Weights of the matrix products; `auto` is int8 on a CPU."
    )
    head_tokens: PositiveInt | None = Field(
        None,
        description="Most tokens that are ever proposed, of those that the draft lists as its "
        "target's most frequent; all that are listed if left out.",
    )
    support: PositiveInt = Field(
        32, le=MAX_SUPPORT, description="Most tokens a shipped draft distribution keeps."
    )
    max_sessions: PositiveInt = Field(64, description="Sessions whose KV is kept at once.")
    max_tokens: PositiveInt = Field(
        65536, description="KV cache budget in tokens over all sessions; the idlest is evicted."
    )
    trust_remote_code: bool = False


class CustomDraftConfig(_Settings):
    """A proposer of the user's own, behind our sessions, streams and depth control."""

    import_path: str = Field(
        pattern=r"^[\w.]+:\w+$",
        description="`module:Class` of a `specray.draft.proposer.Proposer`.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Its constructor's arguments.")


class DraftConfig(_Settings):
    """The draft deployment: what proposes, and how many replicas of it."""

    method: Literal["prompt_lookup", "model", "hybrid", "custom"] = "prompt_lookup"
    prompt_lookup: PromptLookupConfig = PromptLookupConfig()
    model: ModelDraftConfig | None = None
    custom: CustomDraftConfig | None = None
    cpus: tuple[NonNegativeInt, ...] = Field(
        (), description="Cores this draft is pinned to; empty leaves it to the kernel."
    )
    deployment_config: dict[str, Any] = Field(
        default_factory=dict, description="Ray Serve deployment options, passed through."
    )

    @model_validator(mode="after")
    def _check_model(self) -> "DraftConfig":
        if self.uses_model and self.model is None:
            raise ValueError(
                f"method is `{self.method}` but the field `model` is missing: name the draft"
            )
        if self.method == "custom" and self.custom is None:
            raise ValueError("method is `custom` but the field `custom` is missing")
        return self

    @property
    def uses_model(self) -> bool:
        """Whether a replica loads `model`."""
        return self.method in ("model", "hybrid")


class SpeculationConfig(_Settings):
    """Limits that hold for the life of the target, and the policy it starts with.

    `max_depth` sizes vLLM's buffers; the live policy may lower the depth but not exceed it.
    """

    max_depth: int = Field(
        5, ge=0, le=MAX_DEPTH, description="`num_speculative_tokens` of the target's vLLM."
    )
    max_wait_ms: PositiveFloat = Field(
        20.0, le=MAX_WAIT_MS, description="Longest that a step waits for proposals that are due."
    )
    stall_timeout_s: float = Field(
        1.0,
        ge=0.05,
        le=3600.0,
        description="A draft that owes a proposal for longer loses its sessions to another.",
    )
    listen_host: str = Field(
        "auto",
        description="Address on which replicas accept streams; `auto` is their node's address.",
    )
    trust_draft_distributions: bool = Field(
        True,
        description="Use the drafts' distributions for sampled requests. Without, each proposed "
        "token counts as a point mass: exact whatever the draft sends, but accepted less often.",
    )

    @property
    def policy(self) -> SpeculationPolicy:
        """The live policy at start."""
        return SpeculationPolicy(max_depth=self.max_depth, max_wait_ms=self.max_wait_ms)


class LivePolicyConfig(_Settings):
    """`user_config` of the controller deployment: changes without a restart."""

    is_enabled: bool = True
    max_depth: int | None = Field(None, ge=0, le=MAX_DEPTH)
    max_wait_ms: PositiveFloat | None = Field(None, le=MAX_WAIT_MS)

    def apply(self, start: SpeculationPolicy) -> SpeculationPolicy:
        """The policy that results when these settings replace those of the start."""
        depth = start.max_depth if self.max_depth is None else min(self.max_depth, start.max_depth)
        wait_ms = start.max_wait_ms if self.max_wait_ms is None else self.max_wait_ms
        return SpeculationPolicy(self.is_enabled, depth, wait_ms)


class LiveDraftConfig(_Settings):
    """`user_config` of the draft deployment, for a hybrid: changes without a restart."""

    sources: tuple[Source, ...] = Field(
        ("prompt_lookup", "model"), min_length=1, description="Which of its sources may propose."
    )


class TargetPluginConfig(_Settings):
    """What the target's replica tells the vLLM plug-ins, through vLLM's `additional_config`."""

    max_depth: int
    policy: SpeculationPolicy
    trust_draft_distributions: bool
