"""All that can be said about a config file before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from specray.config import ModelDraftConfig
from specray.errors import InvalidConfigError
from specray.models.size import read_size
from specray.models.sources import check_name, find_local
from specray.models.tokenizers import check_same_tokenizer
from specray.serve.advice import Draft, Target, advise
from specray.serve.config_file import BUILDER, read_file
from specray.serve.live import check_deployments, live_settings
from specray.serve.memory import DraftMemory, TargetMemory, draft_memory, target_memory
from specray.serve.pools import Pool
from specray.serve.settings import (
    AppArgs,
    check_parallelism,
    field,
    places_of_targets,
    source_of,
    validate,
)


@dataclass(frozen=True, slots=True)
class Application:
    """What an application of ours needs, and what is worth knowing about it."""

    name: str
    route_prefix: str | None
    pools: tuple[Pool, ...]
    targets: dict[str, TargetMemory | None]  # by model_id; None: its size is not known
    engine_drafters: dict[str, str]  # by model_id: vLLM's own inside the target
    draft_method: str | None  # None without speculation
    draft_model: str | None  # None if the method needs none
    draft: DraftMemory | None  # None: without a model, or its size is not known
    tokenizers: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileReport:
    """A config file explained."""

    applications: tuple[Application, ...]
    others: tuple[str, ...]  # applications that are not ours

    @property
    def num_warnings(self) -> int:
        """Over all applications."""
        return sum(len(application.warnings) for application in self.applications)


def check_file(path: Path) -> FileReport:
    """Explains a config file. Starts nothing, makes and downloads no model.

    Raises:
        InvalidConfigError: it could not be served; the message names each faulty field.
    """
    config = read_file(path)
    ours = [app for app in config.applications if app.import_path == BUILDER]
    faults, applications = [], []
    for app in ours:
        try:
            applications.append(explain(app, config))
        except InvalidConfigError as error:
            faults += [f"{path}: applications.{app.name}: {line}" for line in _lines(error)]
    if faults:
        raise InvalidConfigError("\n".join(faults))
    others = tuple(app.name for app in config.applications if app.import_path != BUILDER)
    return FileReport(tuple(applications), others)


def _lines(error: InvalidConfigError) -> list[str]:
    return [line for line in str(error).splitlines() if line.strip()]


def explain(app: ServeApplicationSchema, config: ServeDeploySchema) -> Application:
    """Explains an application of ours. Starts nothing, makes and downloads no model.

    Raises:
        InvalidConfigError: it could not be served; the message names each faulty field.
    """
    args = validate(app.args)
    pools = check_deployments(app, args)
    targets = _targets(args, pools)
    lengths = [target.memory.max_model_len for target in targets if target.memory]
    draft = _draft(args, pools, max(lengths, default=None))
    compared = _compare_tokenizers(args, draft)
    is_on_one_node = config.proxy_location == "HeadOnly"
    warnings = advise(args, targets, draft, live_settings(app, "controller"), is_on_one_node)
    return Application(
        name=app.name,
        route_prefix=app.route_prefix,
        pools=pools,
        targets={target.config.model_id: target.memory for target in targets},
        engine_drafters=_engine_drafters(args),
        draft_method=args.draft.method if args.speculation.max_depth > 0 else None,
        draft_model=draft.config.model if draft else None,
        draft=draft.memory if draft else None,
        tokenizers=compared.outcome,
        warnings=warnings + compared.warnings,
    )


def _engine_drafters(args: AppArgs) -> dict[str, str]:
    """In words, and whether what it takes is part of the target's memory."""
    configs = {t.model_id: t.engine_kwargs.get("speculative_config") for t in args.targets}
    return {
        model_id: f"{_name(config)}, inside it; {_memory_of(config)}"
        for model_id, config in configs.items()
        if config and args.speculation.max_depth > 0
    }


def _name(config: Mapping[str, Any]) -> str:
    return " ".join(str(config[name]) for name in ("method", "model") if config.get(name))


def _memory_of(config: Mapping[str, Any]) -> str:
    if not config.get("model"):
        return "takes next to nothing"
    if config.get("method") != "draft_model":
        return "what a head takes is not counted above"
    return "counted above" if read_size(config["model"]) else "its size is not known from here"


def _targets(args: AppArgs, pools: tuple[Pool, ...]) -> tuple[Target, ...]:
    own = [pool for pool in pools if pool.role == "target"]
    targets = []
    for place, target, pool in zip(places_of_targets(args), args.targets, own, strict=True):
        source = source_of(target)
        if source is not None:
            with field(f"{place}.model_loading_config.model_source"):
                check_name(source)
        with field(f"{place}.engine_kwargs.tensor_parallel_size"):
            check_parallelism(target, None)
        try:
            memory = target_memory(target, pool, args.speculation.max_depth)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{place}.{error}") from None
        if memory is not None:
            with field(f"{place}.engine_kwargs.tensor_parallel_size"):
                shape = memory.size.heads
                check_parallelism(target, shape)
        targets.append(Target(place, target, pool, memory))
    return tuple(targets)


def _draft(args: AppArgs, pools: tuple[Pool, ...], longest: int | None) -> Draft | None:
    config = _draft_model(args)
    if config is None:
        return None
    with field("draft.model.model"):
        check_name(config.model)
    (pool,) = (pool for pool in pools if pool.role == "draft")
    return Draft(config, pool, draft_memory(config, pool, longest))


def _draft_model(args: AppArgs) -> ModelDraftConfig | None:
    """The draft's model, if the method uses it."""
    return args.draft.model if args.has_drafts and args.draft.uses_model else None


class _Comparison(NamedTuple):
    """Of the draft's tokenizer with the targets'."""

    outcome: str  # in words
    warnings: tuple[str, ...] = ()


def _compare_tokenizers(args: AppArgs, draft: Draft | None) -> _Comparison:
    """Reads the tokenizers that are on this machine.

    Raises:
        InvalidConfigError: a token has another id.
    """
    if not args.has_drafts:
        return _Comparison("nothing to compare: there is no draft pool")
    if draft is None:
        return _Comparison("nothing to compare: the drafts have no model")
    sources = [source_of(target) for target in args.targets]
    if None in sources:
        return _Comparison(
            "not compared: the target's lies in a bucket; compared when the draft starts"
        )
    missing = [name for name in (*sources, draft.config.model) if find_local(str(name)) is None]
    if missing:
        return _Comparison(
            f"not compared: {', '.join(map(str, missing))} not on this machine; compared at start"
        )
    if draft.config.target_tokenizer is not None:
        return _Comparison("the draft's own; it proposes the tokens that both vocabularies hold")
    notes: dict[str, None] = {}  # each once, though several targets give it, in their order
    with field("draft.model.model"):
        for source in sources:
            folders = find_local(str(source)), find_local(draft.config.model)
            notes |= dict.fromkeys(check_same_tokenizer(*map(str, folders)))
    warnings = tuple(f"draft.model.model: {note}" for note in notes)
    return _Comparison("every token has the same id for target and draft", warnings)
