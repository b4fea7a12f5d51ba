"""The settings a user writes. Unknown keys are errors; every message names its field."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    field_validator,
    model_validator,
)

from specray.types import DataPath, DepthRule, GoodputRule, SpeculationPolicy

MAX_DEPTH = 64  # far beyond what pays; vLLM's rejection sampler takes 128
MAX_SUPPORT = 256  # of a shipped distribution; the mass beyond is next to nothing
MAX_FAN_OUT = 64  # branches a session, on average over all
MAX_WAIT_MS = 10_000.0  # a step held back for longer is an outage
FILE_PREFIX = "file:"  # of `observability.traces`


def _named(rule: Any) -> Any:
    """A rule may be given by its name alone, with its defaults."""
    return {"name": rule} if isinstance(rule, str) else rule


DepthRuleConfig = Annotated[
    DepthRule, Field(discriminator="name"), BeforeValidator(_named, json_schema_input_type=Any)
]
"""How depths are chosen: a name, or a name and parameters."""

DEPTH_RULE: TypeAdapter[DepthRule] = TypeAdapter(DepthRuleConfig)


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
    prompt_tokens: PositiveInt = Field(
        32768,
        description="Latest tokens of a prompt that are looked up; some 2 kB and 4 µs each.",
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
    cuda_graphs: bool = Field(
        False,
        description="On a GPU: record passes as CUDA graphs; Llama, Mistral and Qwen2 models only. "
        "Off until it has been run on a GPU.",
    )
    head_tokens: PositiveInt | None = Field(
        None,
        description="Most tokens that are ever proposed, of those that the draft lists as its "
        "target's most frequent; all that are listed if left out.",
    )
    support: PositiveInt = Field(
        32, le=MAX_SUPPORT, description="Most tokens a shipped draft distribution keeps."
    )
    fan_out: NonNegativeInt | None = Field(
        None,
        le=MAX_FAN_OUT,
        description="Draft ahead: outcomes of a running verification that are continued before it "
        "ends, per session on average; the likeliest of all sessions, as many as there is time "
        "for. Each takes KV memory out of `max_tokens`. 0 drafts only after commits. Left out: "
        "{MAX_FAN_OUT} where the outcomes of a session read its KV in place (Llama-like drafts in "
        "float32 on CPUs), 8 where each takes a copy of it.",
    )
    max_sessions: PositiveInt = Field(64, description="Sessions whose KV is kept at once.")
    max_tokens: PositiveInt = Field(
        65536, description="KV cache budget in tokens over all sessions; the idlest is evicted."
    )
    trust_remote_code: bool = False


class NgramDraftConfig(_Settings):
    """What the target usually says behind its last few tokens, counted by `specray distill`."""

    model: str = Field(
        description="Folder of a draft with n-grams in it, or `bundled:NAME` of one; its other "
        "files are not read."
    )
    fan_out: NonNegativeInt = Field(
        8,
        le=48,
        description="Draft ahead: the likeliest outcomes that are continued, behind each proposal; "
        "one takes some 0.2 ms.",
    )


class CustomDraftConfig(_Settings):
    """A proposer of the user's own, behind our sessions, streams and depth control."""

    import_path: str = Field(
        pattern=r"^[\w.]+:\w+$",
        description="`module:Class` of a `specray.draft.proposer.Proposer`.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Its constructor's arguments.")


class SimulationConfig(_Settings):
    """For experiments: what a longer network and a slower draft would add."""

    rtt_ms: NonNegativeFloat = Field(
        0.0, le=MAX_WAIT_MS, description="Round trip between router and draft, half each way."
    )
    pass_ms: NonNegativeFloat = Field(
        0.0,
        le=MAX_WAIT_MS,
        description="Least time of a forward pass of the draft's model; a proposal of n tokens "
        "takes n passes.",
    )

    @property
    def announcement(self) -> str:
        """What a replica logs once this is in force."""
        return f"simulated: a round trip of {self.rtt_ms:g} ms, passes of {self.pass_ms:g} ms"


class DraftConfig(_Settings):
    """The draft deployment: what proposes, and how many replicas of it."""

    method: Literal["prompt_lookup", "ngram", "model", "hybrid", "custom"] = "prompt_lookup"
    prompt_lookup: PromptLookupConfig = PromptLookupConfig()
    ngram: NgramDraftConfig | None = Field(
        None,
        description="For `ngram`. With `hybrid` n-grams answer at once what the model has not "
        "drafted ahead, so that no step waits for the model; for models that take a good part of a "
        "step for a proposal.",
    )
    model: ModelDraftConfig | None = None
    custom: CustomDraftConfig | None = None
    simulation: SimulationConfig | None = Field(
        None, description="Never in production. Changes while it runs by the draft's user_config."
    )
    weights: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default_factory=dict,
        description="Share of a draft's time by tenant, where several want it; 1 for those that "
        "are not named. `router.tenant_header` says who they are.",
    )
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
        if self.method == "ngram" and self.ngram is None:
            raise ValueError(
                "method is `ngram` but the field `ngram` is missing: name the folder of the n-grams"
            )
        if self.method == "custom" and self.custom is None:
            raise ValueError("method is `custom` but the field `custom` is missing")
        is_translated = self.model is not None and self.model.target_tokenizer is not None
        if self.method == "hybrid" and self.ngram is not None and is_translated:
            raise ValueError(
                "method is `hybrid` with the field `ngram`, for which the model must share the "
                "target's tokenizer: leave out `ngram` or `model.target_tokenizer`"
            )
        return self

    @property
    def uses_model(self) -> bool:
        """Whether a replica loads `model`."""
        return self.method in ("model", "hybrid")

    @property
    def uses_ngrams(self) -> bool:
        """Whether a replica loads the table of `ngram`."""
        return self.method == "ngram" or (self.method == "hybrid" and self.ngram is not None)

    @property
    def max_replicas(self) -> int | None:
        """Serve's bound of their number, if it is the file's."""
        scaling = self.deployment_config.get("autoscaling_config") or {}
        most = scaling.get("max_replicas") if isinstance(scaling, dict) else None
        return most if isinstance(most, int) else None

    @property
    def fan_out(self) -> int:
        """Most outcomes per session that its model drafts for ahead; 0 without a model."""
        if self.model is None or not self.uses_model:
            return 0
        return MAX_FAN_OUT if self.model.fan_out is None else self.model.fan_out


class ObjectiveConfig(_Settings):
    """What the slow loop sizes pools for. Replicas follow where Serve is told to ask it."""

    goal: Literal["throughput", "latency", "slo"] = Field(
        "throughput",
        description="`throughput`: goodput by what replicas cost; `latency`: goodput of each "
        "request, whatever it costs; `slo`: as few replicas as meet the times below.",
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
    stop_gap: bool = Field(
        True,
        description="Where a step finds no proposal, the target may verify a copy from the "
        "request's own text instead of waiting, or of decoding one token; whichever pays. Where "
        "drafts have n-grams (`draft.ngram`), it may verify guesses from these, too.",
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
        "streams from target to draft, where the router only says which drafts there are.",
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

    depth_policy: DepthRuleConfig = Field(
        GoodputRule(),
        description="How depths are chosen; others than `goodput` are for comparison.",
    )
    hardware: Literal["auto", "H100", "H200", "B200", "A100", "L40S", "MI300X"] = Field(
        "auto",
        description="Profile of the target's devices, for the roofline; `auto` finds out.",
    )
    objective: Annotated[ObjectiveConfig, BeforeValidator(_goal, json_schema_input_type=Any)] = (
        Field(ObjectiveConfig(), description="What pools are sized for; a goal alone will do.")
    )

    @property
    def policy(self) -> SpeculationPolicy:
        """The live policy at start."""
        return SpeculationPolicy(
            max_depth=self.max_depth,
            max_wait_ms=self.max_wait_ms,
            depth_rule=self.depth_policy,
            has_stop_gap=self.stop_gap,
        )


class ObservabilityConfig(_Settings):
    """What is written down about single requests; nothing unless asked for."""

    session_log: bool = Field(
        False, description="A log line for each request at its end, on target and draft."
    )
    traces: str | None = Field(
        None,
        description="Where spans go: `http://HOST:4318/v1/traces` of an OTLP collector, or "
        "`file:FOLDER`.",
    )
    trace_ratio: float = Field(
        1.0, gt=0, le=1, description="Share of requests traced, of those whose client does not say."
    )
    timeline: str | None = Field(
        None,
        description="Folder to which targets and drafts write what they do when, for `specray "
        "trace`. It grows without bound: for minutes, not for production.",
    )

    @field_validator("traces", mode="before")
    @classmethod
    def _check_traces(cls, value: Any) -> Any:
        if value is False:  # `off` in YAML
            return None
        is_known = isinstance(value, str) and value.startswith(("http://", "https://", FILE_PREFIX))
        if value is None or is_known:
            return value
        raise ValueError(
            f"{value!r} is neither an OTLP endpoint (http://HOST:4318/v1/traces) nor "
            f"{FILE_PREFIX}FOLDER nor off"
        )


class LogFileConfig(_Settings):
    """A log file of a process that Serve does not know."""

    path: str
    is_json: bool
    level: str | int


class EngineWatchConfig(_Settings):
    """What a target's replica asks of its engine's process."""

    observability: ObservabilityConfig = ObservabilityConfig()
    log_file: LogFileConfig | None = None
    instance: str = ""  # the replica's id


class LivePolicyConfig(_Settings):
    """`user_config` of the controller deployment: changes without a restart."""

    is_enabled: bool = True
    max_depth: int | None = Field(None, ge=0, le=MAX_DEPTH)
    max_wait_ms: PositiveFloat | None = Field(None, le=MAX_WAIT_MS)
    depth_policy: DepthRuleConfig | None = None
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
    stop_gap: bool | None = None

    def apply(self, start: SpeculationPolicy) -> SpeculationPolicy:
        """The policy that results when these settings replace those of the start."""
        depth = start.max_depth if self.max_depth is None else min(self.max_depth, start.max_depth)
        wait_ms = start.max_wait_ms if self.max_wait_ms is None else self.max_wait_ms
        rule = self.depth_policy or start.depth_rule
        stop_gap = start.has_stop_gap if self.stop_gap is None else self.stop_gap
        return SpeculationPolicy(self.is_enabled, depth, wait_ms, rule, stop_gap)


class LiveDraftConfig(_Settings):
    """`user_config` of the draft deployment: changes without a restart."""

    sources: tuple[Literal["prompt_lookup", "ngram", "model"], ...] = Field(
        ("prompt_lookup", "ngram", "model"),
        min_length=1,
        description="Which sources of a draft with several may propose.",
    )
    simulation: SimulationConfig | None = Field(
        None, description="Instead of `draft.simulation`, which has to be there at the start."
    )


class TargetPluginConfig(_Settings):
    """What the target's replica tells the vLLM plug-ins, through vLLM's `additional_config`."""

    max_depth: int
    policy: SpeculationPolicy
    trust_draft_distributions: bool
    hardware: str = "auto"
    timeline: str | None = None
    data_path: DataPath = "relay"
    stall_timeout_s: float = 1.0  # on a direct data path; else routers look after drafts
    ngrams: str | None = None  # folder of the drafts' table, for the stop-gap
