"""The arguments of an application, checked before anything starts to load."""

from collections.abc import Mapping
from typing import Any

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from ray.serve.llm import LLMConfig

from specray.config import (
    DraftConfig,
    ModelDraftConfig,
    ObservabilityConfig,
    SpeculationConfig,
    TargetPluginConfig,
)
from specray.config.base import Settings
from specray.errors import InvalidConfigError
from specray.models.heads import Heads, read_heads
from specray.models.sources import ngram_folder, resolve
from specray.models.tokenizers import check_same_tokenizer, read_tokens
from specray.models.vocabulary import Vocabulary, shared_tokens
from specray.serve.engine_drafter import check_engine_drafter, drafting_config
from specray.target.names import HARDWARE_KEY, PROPOSER_CLS, SCHEDULER_CLS, WORKER_CLS

_OURS = ("scheduler_cls", "worker_cls", "async_scheduling")
_ENVIRONMENT = {  # what our plug-ins plug into
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # unset, vLLM takes the second for EAGLE heads on GPUs
    "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "1",  # the first goes past the worker to its model runner
}
_NO_DRAFTER = {"method": "custom_class", "model": PROPOSER_CLS}


class RouterConfig(Settings):
    """The ingress deployment."""

    ui: bool = Field(
        True,
        description="A page for people at `/ui`, and what `specray explain` reads at "
        "`/speculation`; like the API, they ask nobody who they are.",
    )
    tenant_header: str = Field(
        "authorization",
        min_length=1,
        description="Request header that tells tenants apart, who then share drafts fairly. Of "
        "`authorization` and other secrets only a hash goes on; set another one at your gateway.",
    )
    deployment_config: dict[str, Any] = Field(
        default_factory=dict, description="Ray Serve deployment options, passed through."
    )


class AppArgs(Settings):
    """What stands under `args` of an application whose `import_path` is `specray:build_app`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    target: LLMConfig = Field(description="Ray Serve LLM's LLMConfig, passed through.")
    more_targets: tuple[LLMConfig, ...] = Field(
        (), description="Further models, of the same tokenizer, that the same drafts serve."
    )
    draft: DraftConfig = DraftConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    router: RouterConfig = RouterConfig()
    observability: ObservabilityConfig = ObservabilityConfig()

    @field_validator("target", "more_targets")
    @classmethod
    def _check_engines(cls, value: Any) -> Any:
        for target in value if isinstance(value, tuple) else (value,):
            _check_engine(target)
        return value

    @model_validator(mode="after")
    def _check_names(self) -> "AppArgs":
        names = [target.model_id for target in self.targets]
        if len(set(names)) < len(names):
            raise ValueError(
                f"the targets' model_ids {names} are not all different: clients choose by them"
            )
        return self

    @model_validator(mode="after")
    def _check_plugged_in(self) -> "AppArgs":
        if self.speculation.max_depth > 0:
            for target, place in zip(self.targets, places_of_targets(self), strict=True):
                _check_surroundings(target, place)
        return self

    @property
    def targets(self) -> tuple[LLMConfig, ...]:
        """The model of each target pool; all share the draft pool."""
        return (self.target, *self.more_targets)

    @property
    def has_drafts(self) -> bool:
        """Whether there is a draft pool."""
        return self.speculation.max_depth > 0 and self.draft.method != "none"


def _check_engine(target: LLMConfig) -> None:
    for name in _OURS:
        if target.engine_kwargs.get(name):
            raise ValueError(
                f"engine_kwargs.{name} is set by specray; remove it (the depth is "
                "speculation.max_depth, 0 to serve without speculation)"
            )
    if target.engine_kwargs.get("speculative_config") is not None:
        check_engine_drafter(target.engine_kwargs["speculative_config"])
    if target.engine_kwargs.get("pipeline_parallel_size", 1) != 1:
        raise ValueError(
            "engine_kwargs.pipeline_parallel_size must be 1, as one batch is verified at a "
            "time; split the model with tensor_parallel_size"
        )


def _check_surroundings(target: LLMConfig, place: str) -> None:
    """What would keep our plug-ins from being run in the target's engine."""
    if target.engine_kwargs.get("data_parallel_size", 1) != 1:
        raise ValueError(
            f"{place}.engine_kwargs.data_parallel_size must be 1, as a replica has one stream for "
            "its one engine; take more replicas"
        )
    for name, value in _variables(target).items():
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004  # pydantic's message is made of it
                f'{place}.runtime_env.env_vars.{name} must be a string: write "{value}", with the '
                "quotes"
            )
    for name, value in _ENVIRONMENT.items():
        if _variables(target).get(name, value) != value:
            raise ValueError(
                f"{place}.runtime_env.env_vars.{name} must be {value}, as specray sets it; remove "
                "it"
            )


def validate(args: Any) -> AppArgs:
    """Check arguments as Ray passes them (a dict), without looking at models.

    Raises:
        InvalidConfigError: naming each faulty field, what is wrong and what to do.
    """
    try:
        return args if isinstance(args, AppArgs) else AppArgs.model_validate(args)
    except ValidationError as error:
        raise InvalidConfigError(_describe(error)) from None


def parse(args: Any) -> AppArgs:
    """Check arguments as Ray passes them (a dict) and resolve the models they name.

    Raises:
        InvalidConfigError: naming each faulty field, what is wrong and what to do.
    """
    return _resolve_models(validate(args))


def plugged_in(args: AppArgs, target: LLMConfig) -> LLMConfig:
    """A target's config with specray's vLLM plug-ins; without speculation when the depth is 0."""
    given = target.engine_kwargs
    drafter = given.get("speculative_config")
    if args.speculation.max_depth == 0:
        plain = {name: value for name, value in given.items() if name != "speculative_config"}
        return target if drafter is None else _changed(target, engine_kwargs=plain)
    # FLOPs and bytes of each step, for its arithmetic intensity: some 60 µs a step.
    engine_kwargs = {"enable_mfu_metrics": True} | given
    engine_kwargs |= {
        "scheduler_cls": SCHEDULER_CLS,
        "worker_cls": WORKER_CLS,
        "async_scheduling": False,
        "speculative_config": drafting_config(drafter or _NO_DRAFTER, args.speculation.max_depth),
        "additional_config": (given.get("additional_config") or {})
        | {HARDWARE_KEY: args.speculation.hardware},
    }
    runtime_env = (target.runtime_env or {}) | {"env_vars": _variables(target) | _ENVIRONMENT}
    return _changed(target, engine_kwargs=engine_kwargs, runtime_env=runtime_env)


def plugin_config(args: AppArgs) -> TargetPluginConfig:
    """What the plug-ins in the targets' engines are told."""
    draft, speculation = args.draft, args.speculation
    return TargetPluginConfig(
        max_depth=speculation.max_depth,
        has_drafts=args.has_drafts,
        policy=speculation.policy,
        trust_draft_distributions=speculation.trust_draft_distributions,
        data_path=speculation.data_path,
        stall_timeout_s=speculation.stall_timeout_s,
        ngrams=draft.ngram.model if draft.uses_ngrams and draft.ngram else None,
        shared_tokens=draft.shared_tokens,
        shared_between_tenants=draft.prompt_lookup.shared_between_tenants,
        observability=args.observability,
    )


def _variables(target: LLMConfig) -> dict[str, Any]:
    """Of its replicas. Ray takes those of the config *instead* of those of the actor's options.

    Raises:
        ValueError: they are no mapping.
    """
    options = target.deployment_config.get("ray_actor_options") or {}
    found: dict[str, Any] = {}
    for runtime_env in (options.get("runtime_env"), target.runtime_env):
        given = (runtime_env or {}).get("env_vars") or {}
        if not isinstance(given, dict):
            raise ValueError(  # noqa: TRY004  # pydantic's message is made of it
                f"target {target.model_id}: runtime_env.env_vars must be a mapping, not {given!r}"
            )
        found |= given
    return found


def _resolve_models(args: AppArgs) -> AppArgs:
    target, *more = (
        _resolve_target(target, place)
        for target, place in zip(args.targets, places_of_targets(args), strict=True)
    )
    resolved = args.model_copy(update={"target": target, "more_targets": tuple(more)})
    draft = args.draft
    if args.has_drafts and draft.uses_model and draft.model is not None:
        sources = {
            place: source
            for place, target in zip(places_of_targets(args), resolved.targets, strict=True)
            if (source := source_of(target)) is not None
        }
        draft = draft.model_copy(update={"model": _resolve_draft(draft.model, sources)})
    if args.has_drafts and draft.uses_ngrams and draft.ngram is not None:
        with field("draft.ngram.model"):
            folder = ngram_folder(draft.ngram.model)
        ngram = draft.ngram.model_copy(update={"model": str(folder)})
        draft = draft.model_copy(update={"ngram": ngram})
    return resolved.model_copy(update={"draft": draft})


def _resolve_draft(draft: ModelDraftConfig, targets: Mapping[str, str]) -> ModelDraftConfig:
    """The draft's model, checked against every target's tokenizer, or against the one it reads.

    Args:
        draft: the draft's.
        targets: the models' sources, by where the targets stand.
    """
    for place, source in targets.items():
        with field(f"{place}.model_loading_config.model_source"):
            read_tokens(resolve(source))  # so that it is not the draft that is blamed
    tokenizer = None
    if draft.target_tokenizer is not None:
        with field("draft.model.target_tokenizer"):
            tokenizer = resolve(draft.target_tokenizer)
            for source in targets.values():
                check_same_tokenizer(source, tokenizer)
    with field("draft.model.model"):
        model = resolve(draft.model)
        if tokenizer is not None:
            shared_tokens(Vocabulary(tokenizer), Vocabulary(model))
        else:
            for source in targets.values():
                check_same_tokenizer(source, draft.model)
    return draft.model_copy(update={"model": model, "target_tokenizer": tokenizer})


def _resolve_target(target: LLMConfig, place: str) -> LLMConfig:
    source = source_of(target)
    if source is None:
        return target
    with field(f"{place}.model_loading_config.model_source"):
        resolved = resolve(source)
    shape = None if degree_of(target) == 1 else read_heads(resolved)
    with field(f"{place}.engine_kwargs.tensor_parallel_size"):
        check_parallelism(target, shape)
    loading = target.model_loading_config.model_copy(update={"model_source": resolved})
    changes: dict[str, Any] = {"model_loading_config": loading}
    drafter = target.engine_kwargs.get("speculative_config") or {}
    if isinstance(drafter.get("model"), str):
        with field(f"{place}.engine_kwargs.speculative_config.model"):
            found = drafter | {"model": resolve(drafter["model"])}
        changes["engine_kwargs"] = target.engine_kwargs | {"speculative_config": found}
    return _changed(target, **changes)


def places_of_targets(args: AppArgs) -> list[str]:
    """Where in the arguments each of `args.targets` stands."""
    return ["target", *(f"more_targets.{i}" for i in range(len(args.more_targets)))]


def source_of(target: LLMConfig) -> str | None:
    """What a target's model is loaded from; None for a bucket, which only the replica can read."""
    loading = target.model_loading_config
    source = loading.model_source or loading.model_id
    return source if isinstance(source, str) and "://" not in source else None


def _changed(config: LLMConfig, **changes: Any) -> LLMConfig:
    """The config with other values; `model_copy` would keep what Ray derived from the old ones."""
    given = {name: getattr(config, name) for name in config.model_fields_set}
    return LLMConfig(**given | changes)


def degree_of(target: LLMConfig) -> Any:
    """The `tensor_parallel_size` as it is written; a faulty one too."""
    return target.engine_kwargs.get("tensor_parallel_size", 1)


def check_parallelism(target: LLMConfig, shape: Heads | None) -> None:
    """Checks that the model can be split over the target's GPUs, as far as its shape is known.

    Raises:
        InvalidConfigError: it can't; the message names the numbers.
    """
    degree = degree_of(target)
    if not isinstance(degree, int) or degree < 1:
        raise InvalidConfigError(f"{degree!r} is no number of GPUs; give an integer from 1 on")
    if shape is None:
        return
    if shape.num_heads % degree or (shape.num_kv_heads % degree and degree % shape.num_kv_heads):
        raise InvalidConfigError(
            f"{degree} does not divide the model's {shape.num_heads} "
            f"attention heads and {shape.num_kv_heads} KV heads; choose one that does"
        )


class field:  # noqa: N801 - reads as a statement
    """Puts a field's name in front of what is said about its value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, InvalidConfigError) and self._name not in str(error):
            raise InvalidConfigError(f"{self._name}: {error}") from None


def _describe(error: ValidationError) -> str:
    lines = []
    for fault in error.errors(include_url=False):
        place = ".".join(str(part) for part in fault["loc"])
        lines.append(f"{place}: {fault['msg']} (got {fault['input']!r:.80})")
    return "\n".join(lines)
