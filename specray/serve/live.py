"""What of a config file may change while it is served: the deployments' `user_config`."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from specray.config import DraftConfig, LiveDraftConfig, LivePolicyConfig
from specray.errors import InvalidConfigError
from specray.serve.app import target_name
from specray.serve.settings import AppArgs

_MODELS: dict[str, type[BaseModel]] = {"controller": LivePolicyConfig, "draft": LiveDraftConfig}


def check_user_configs(app: ServeApplicationSchema, draft: DraftConfig) -> None:
    """Checks the live settings of an application of ours.

    Raises:
        InvalidConfigError: naming each faulty field, or settings that the draft does not have.
    """
    settings = [e.user_config for e in app.deployments if e.name == "draft" and e.user_config]
    if settings and "sources" in settings[0] and draft.method not in ("hybrid", "ngram"):
        raise InvalidConfigError(
            f"deployments.draft.user_config: {settings[0]} is for a draft with several sources; "
            f"draft.method is {draft.method}"
        )
    if settings and "simulation" in settings[0] and draft.simulation is None:
        raise InvalidConfigError(
            "deployments.draft.user_config.simulation: needs `draft.simulation` in the args, which "
            "puts a delay line in front of the draft when it starts"
        )
    faults = [
        f"deployments.{'.'.join((entry.name, 'user_config', *map(str, fault['loc'])))}: "
        f"{fault['msg']} (got {fault['input']!r:.80})"
        for entry in app.deployments
        if entry.name in _MODELS and isinstance(entry.user_config, dict)
        for fault in _faults(_MODELS[entry.name], entry.user_config)
    ]
    if faults:
        raise InvalidConfigError("\n".join(faults))


def check_pools_by_hand(app: ServeApplicationSchema, args: AppArgs) -> None:
    """Checks that replicas are chosen by hand for pools that there are.

    Raises:
        InvalidConfigError: naming the pool.
    """
    pools = [target_name(target) for target in args.targets]
    pools += ["draft"] if args.speculation.max_depth > 0 else []
    for entry in app.deployments:
        settings = entry.user_config if entry.name == "controller" else None
        unknown = ((settings or {}).get("num_replicas") or {}).keys() - set(pools)
        if unknown:
            raise InvalidConfigError(
                f"deployments.controller.user_config.num_replicas: {min(unknown)!r} is none of the "
                f"pools {', '.join(pools)}"
            )


def changes_beyond(before: ServeDeploySchema, after: ServeDeploySchema) -> tuple[str, ...]:
    """The fields, but for live settings, in which two files differ."""
    return tuple(_differences(_without_live(before), _without_live(after), ""))


def live_changes(before: ServeDeploySchema, after: ServeDeploySchema) -> tuple[str, ...]:
    """The live settings in which two files differ."""
    return tuple(_differences(_live(before), _live(after), "applications"))


def _faults(model: type[BaseModel], settings: dict[str, Any]) -> list[Any]:
    try:
        model.model_validate(settings)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _live(config: ServeDeploySchema) -> dict[str, Any]:
    """The `user_config` of each deployment of each application."""
    return {
        app.name: {
            f"deployments.{entry.name}.user_config": entry.user_config for entry in app.deployments
        }
        for app in config.applications
    }


def _without_live(config: ServeDeploySchema) -> dict[str, Any]:
    """The file as a dict, its applications and their deployments by name."""
    dumped = config.model_dump(exclude_unset=True)
    applications = {app["name"]: app for app in dumped.pop("applications")}
    for app in applications.values():
        for entry in app.pop("deployments", ()):
            options = {k: v for k, v in entry.items() if k not in ("name", "user_config")}
            if options:
                app[f"deployments.{entry['name']}"] = options
    return dumped | {"applications": applications}


def _differences(before: Any, after: Any, place: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            inner = f"{place}.{key}" if place else str(key)
            yield from _differences(before.get(key), after.get(key), inner)
    elif before != after:
        yield place
