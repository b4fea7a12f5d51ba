"""What of a config file may change while it is served: the deployments' `user_config`."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from specray.config import LiveDraftConfig, LivePolicyConfig
from specray.errors import InvalidConfigError

_MODELS: dict[str, type[BaseModel]] = {"controller": LivePolicyConfig, "draft": LiveDraftConfig}


def check_user_configs(app: ServeApplicationSchema, draft_method: str) -> None:
    """Checks the live settings of an application of ours.

    Raises:
        InvalidConfigError: naming each faulty field, or settings that the draft does not have.
    """
    settings = [e.user_config for e in app.deployments if e.name == "draft" and e.user_config]
    if settings and draft_method != "hybrid":
        raise InvalidConfigError(
            f"deployments.draft.user_config: {settings[0]} is for a hybrid; draft.method is "
            f"{draft_method}"
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


def changes_beyond(before: ServeDeploySchema, after: ServeDeploySchema) -> tuple[str, ...]:
    """The fields, but for live settings, in which two files differ."""
    return tuple(_differences(_without_live(before), _without_live(after), ""))


def _faults(model: type[BaseModel], settings: dict[str, Any]) -> list[Any]:
    try:
        model.model_validate(settings)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


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
