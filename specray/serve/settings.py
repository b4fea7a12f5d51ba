"""The arguments of an application, checked before anything starts to load."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from ray.serve.llm import LLMConfig

from specray.config import DraftConfig, SpeculationConfig, TargetPluginConfig
from specray.errors import InvalidConfigError
from specray.models import check_same_tokenizer, read_shape, resolve
from specray.target.names import CONFIG_KEY, PROPOSER_CLS, SCHEDULER_CLS, WORKER_CLS

_OURS = ("scheduler_cls", "worker_cls", "speculative_config", "async_scheduling")


class RouterConfig(BaseModel):
    """The ingress deployment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deployment_config: dict[str, Any] = Field(
        default_factory=dict, description="Ray Serve deployment options, passed through."
    )


class AppArgs(BaseModel):
    """What stands under `args` of an application whose `import_path` is `specray:build_app`."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    target: LLMConfig = Field(description="Ray Serve LLM's LLMConfig, passed through.")
    draft: DraftConfig = DraftConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    router: RouterConfig = RouterConfig()

    @field_validator("target")
    @classmethod
    def _check_engine(cls, target: LLMConfig) -> LLMConfig:
        for name in _OURS:
            if target.engine_kwargs.get(name):
                raise ValueError(
                    f"engine_kwargs.{name} is set by specray; remove it (the depth is "
                    "speculation.max_depth, 0 to serve without speculation)"
                )
        if target.engine_kwargs.get("pipeline_parallel_size", 1) != 1:
            raise ValueError(
                "engine_kwargs.pipeline_parallel_size must be 1, as one batch is verified at a "
                "time; split the model with tensor_parallel_size"
            )
        return target


def parse(args: Any) -> AppArgs:
    """Check arguments as Ray passes them (a dict) and resolve the models they name.

    Raises:
        InvalidConfigError: naming each faulty field, what is wrong and what to do.
    """
    try:
        parsed = args if isinstance(args, AppArgs) else AppArgs.model_validate(args)
    except ValidationError as error:
        raise InvalidConfigError(_describe(error)) from None
    return _resolve_models(parsed)


def plugged_in(args: AppArgs) -> LLMConfig:
    """The target's config with specray's vLLM plug-ins; as it is when the depth is 0."""
    if args.speculation.max_depth == 0:
        return args.target
    plugin = TargetPluginConfig(
        max_depth=args.speculation.max_depth,
        policy=args.speculation.policy,
        trust_draft_distributions=args.speculation.trust_draft_distributions,
    )
    given = args.target.engine_kwargs
    engine_kwargs = given | {
        "scheduler_cls": SCHEDULER_CLS,
        "worker_cls": WORKER_CLS,
        "async_scheduling": False,
        "speculative_config": {
            "method": "custom_class",
            "model": PROPOSER_CLS,
            "num_speculative_tokens": args.speculation.max_depth,
        },
        "additional_config": (given.get("additional_config") or {})
        | {CONFIG_KEY: plugin.model_dump(mode="json")},
    }
    return _changed(args.target, engine_kwargs=engine_kwargs)


def _resolve_models(args: AppArgs) -> AppArgs:
    loading = args.target.model_loading_config
    source = loading.model_source or loading.model_id
    if not isinstance(source, str) or "://" in source:
        return args  # a bucket: only the replica can look into it
    with _field("target.model_loading_config.model_source"):
        resolved = resolve(source)
    with _field("target.engine_kwargs.tensor_parallel_size"):
        _check_parallelism(resolved, args.target)
    loading = loading.model_copy(update={"model_source": resolved})
    target = _changed(args.target, model_loading_config=loading)
    draft = args.draft
    uses_model = draft.method in ("model", "hybrid")
    if args.speculation.max_depth > 0 and uses_model and draft.model is not None:
        with _field("draft.model.model"):
            check_same_tokenizer(resolved, draft.model.model)
            model = draft.model.model_copy(update={"model": resolve(draft.model.model)})
        draft = draft.model_copy(update={"model": model})
    return args.model_copy(update={"target": target, "draft": draft})


def _changed(config: LLMConfig, **changes: Any) -> LLMConfig:
    """The config with other values; `model_copy` would keep what Ray derived from the old ones."""
    given = {name: getattr(config, name) for name in config.model_fields_set}
    return LLMConfig(**given | changes)


def _check_parallelism(model: str, target: LLMConfig) -> None:
    degree = target.engine_kwargs.get("tensor_parallel_size", 1)
    if not isinstance(degree, int) or degree < 1:
        raise InvalidConfigError(f"{degree!r} is no number of GPUs; give an integer from 1 on")
    shape = None if degree == 1 else read_shape(model)
    if shape is None:
        return
    if shape.num_heads % degree or (shape.num_kv_heads % degree and degree % shape.num_kv_heads):
        raise InvalidConfigError(
            f"{degree} does not divide the model's {shape.num_heads} "
            f"attention heads and {shape.num_kv_heads} KV heads; choose one that does"
        )


class _field:  # noqa: N801 - reads as a statement
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
