"""What proposes."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from specray.config.base import MAX_FAN_OUT, MAX_SUPPORT, MAX_WAIT_MS, Settings

_OTHERS_FAN_OUT = 8  # no more has been measured on GPUs, and where outcomes copy their context


class PromptLookupConfig(Settings):
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
    max_tokens: PositiveInt = Field(
        1 << 20,
        description="Tokens of all requests that are looked up, over a replica; some 2 kB each. "
        "Beyond it the idlest request of the tenant with the most makes room.",
    )
    shared_tokens: NonNegativeInt = Field(
        0,
        description="Tokens of earlier answers to the same tenant that are looked up too, over "
        "all tenants of a replica; some 2 kB each. For their `stop_gap` targets remember as many, "
        "at most 65,536, in 4 bytes each. `router.tenant_header` says who they are: requests "
        "without it are one tenant's, and may then learn of each other.",
    )
    shared_between_tenants: bool = Field(
        False,
        description="Whether a tenant's requests look up earlier answers to others, too.",
    )

    @model_validator(mode="after")
    def _check_range(self) -> "PromptLookupConfig":
        if self.min_ngram > self.max_ngram:
            raise ValueError(
                f"min_ngram {self.min_ngram} is larger than max_ngram {self.max_ngram}; lower it"
            )
        return self


class ModelDraftConfig(Settings):
    """A small causal language model that shares the target's tokenizer."""

    model: str = Field(description="Folder, hub id, or `bundled:NAME` of a causal LM.")
    target_tokenizer: str | None = Field(
        None,
        description="For a draft with another tokenizer: the target's folder, hub id or "
        "`bundled:NAME`. The draft then proposes only tokens that both vocabularies hold.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="In which it computes; `auto` is bfloat16 on a GPU, float32 on a CPU."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="`auto` is a GPU where the replica has one."
    )
    quantization: Literal["auto", "none", "int8"] = Field(
        "auto", description="Weights of the matrix products; `auto` is int8 on a CPU."
    )
    cuda_graphs: bool = Field(
        True,
        description="On a GPU: record short passes as CUDA graphs and replay them; Llama, Mistral, "
        "Qwen2 and Qwen3 models only.",
    )
    head_tokens: PositiveInt | None = Field(
        None,
        description="Most tokens that are ever proposed, of those that the draft lists as its "
        "target's most frequent; all that are listed if left out.",
    )
    support: PositiveInt = Field(
        32, le=MAX_SUPPORT, description="Most tokens a shipped draft distribution keeps."
    )
    fan_out: int | None = Field(
        None,
        ge=0,
        le=MAX_FAN_OUT,
        description="Draft ahead: outcomes of a running verification that are continued before it "
        "ends, per session on average; the likeliest of all sessions, as many as there is time "
        "for. Each takes KV memory out of `max_tokens`. 0 drafts only after commits. Left out: "
        f"{MAX_FAN_OUT} with device `cpu` (in float32), where outcomes of Llama-like drafts read "
        f"their session's KV in place, else {_OTHERS_FAN_OUT}: others take a copy of it for each, "
        "and on a GPU it has not been measured how many pay.",
    )
    max_sessions: PositiveInt = Field(
        256,
        description="Requests that are followed at once; the idlest of the tenant with the most "
        "makes room for a new one.",
    )
    max_tokens: PositiveInt = Field(
        65536,
        description="KV cache budget in tokens over all sessions; the idlest of the tenant with "
        "the most is evicted.",
    )
    trust_remote_code: bool = Field(
        False, description="Whether code that comes with the model may run, as in transformers."
    )

    @property
    def most_ahead(self) -> int:
        """`fan_out`, or what takes its place."""
        if self.fan_out is not None:
            return self.fan_out
        reads_in_place = self.device == "cpu" and self.dtype in ("auto", "float32")
        return MAX_FAN_OUT if reads_in_place else _OTHERS_FAN_OUT


class NgramDraftConfig(Settings):
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


class CustomDraftConfig(Settings):
    """A proposer of the user's own, behind our sessions, streams and depth control."""

    import_path: str = Field(
        pattern=r"^[\w.]+:\w+$",
        description="`module:Class` of a `specray.draft.proposer.Proposer`.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Its constructor's arguments.")


class SimulationConfig(Settings):
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


class DraftConfig(Settings):
    """The draft deployment: what proposes, and how many replicas of it."""

    method: Literal["prompt_lookup", "ngram", "model", "hybrid", "custom", "none"] = Field(
        "prompt_lookup",
        description="`prompt_lookup`: copies from the request's own text; `ngram`: these, and a "
        "table of what the target usually says; `model`: a small model; `hybrid`: copies and a "
        "model; `custom`: a class of yours; `none`: no draft pool, for targets with a drafter of "
        "vLLM's own (`target.engine_kwargs.speculative_config`).",
    )
    prompt_lookup: PromptLookupConfig = PromptLookupConfig()
    ngram: NgramDraftConfig | None = Field(
        None,
        description="For `ngram`. With `hybrid` n-grams answer at once what the model has not "
        "drafted ahead, so that no step waits for the model; for models that take a good part of a "
        "step for a proposal.",
    )
    model: ModelDraftConfig | None = Field(None, description="For `model` and `hybrid`.")
    custom: CustomDraftConfig | None = Field(None, description="For `custom`.")
    simulation: SimulationConfig | None = Field(
        None, description="Never in production. Changes while it runs by the draft's user_config."
    )
    weights: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default_factory=dict,
        description="Share of a draft's time, places and memory by tenant, where several want it; "
        "1 for those that are not named. `router.tenant_header` says who they are: by default a "
        "hash of the bearer token.",
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
    def shared_tokens(self) -> int:
        """Tokens of earlier answers that are looked up; 0 where nothing is."""
        looks_up = self.method in ("prompt_lookup", "ngram", "hybrid")
        return self.prompt_lookup.shared_tokens if looks_up else 0

    @property
    def max_replicas(self) -> int | None:
        """Serve's bound of their number, if it is the file's."""
        scaling = self.deployment_config.get("autoscaling_config") or {}
        most = scaling.get("max_replicas") if isinstance(scaling, dict) else None
        return most if isinstance(most, int) else None

    @property
    def fan_out(self) -> int:
        """Most outcomes per session that its model drafts for ahead; 0 without a model."""
        return self.model.most_ahead if self.model is not None and self.uses_model else 0
