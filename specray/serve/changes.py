"""In what a config file differs from the one that is served, and what that costs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ray.serve.schema import ServeDeploySchema

from specray.serve.config_file import read_file
from specray.serve.live import live_settings

_IN_PLACE = frozenset(
    (
        *("num_replicas", "autoscaling_config", "max_ongoing_requests", "max_queued_requests"),
        *("graceful_shutdown_wait_loop_s", "graceful_shutdown_timeout_s", "backpressure_config"),
        *("health_check_period_s", "health_check_timeout_s", "logging_config"),
        *("rolling_update_percentage", "max_surge_percent", "route_prefix"),
    )
)
_ABSENT = object()  # unlike null, which takes back what `args` say


class Changes(NamedTuple):
    """The fields in which a file differs from one that is served."""

    live: tuple[str, ...]  # Serve hands these to the running replicas
    in_place: tuple[str, ...]  # it heeds these without replacing replicas
    beyond: tuple[str, ...]  # for these it replaces replicas; those of HTTP want a new Serve


def compare(before: ServeDeploySchema, after: ServeDeploySchema) -> Changes:
    """What would change if a file took the place of the one that is served.

    In place are most options of entries under `deployments`. Whatever differs under `args`, the
    number of replicas too, makes another version of the application, all of which is replaced; so
    does an autoscaling policy, and an `autoscaling_config` where there was none
    (`ray.serve._private`: `get_app_code_version`, `DeploymentVersion.requires_actor_restart`).
    """
    live = tuple(_in_both(_live(before), _live(after)))
    in_place = tuple(
        place
        for place in _in_both(_kept(before), _kept(after))
        if not place.endswith(".autoscaling_config")  # one that appears, or goes away
    )
    all_but_live = _differences(_without_live(before), _without_live(after), "")
    return Changes(live, in_place, tuple(p for p in all_but_live if p not in in_place))


def compare_files(served: Path, path: Path) -> Changes:
    """`compare` for two files.

    Raises:
        InvalidConfigError: one of them is no Serve config.
    """
    return compare(read_file(served), read_file(path))


def _in_both(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Differences of applications that both files have."""
    for name in filter(after.__contains__, before):
        yield from _differences(before[name], after[name], f"applications.{name}")


def _live(config: ServeDeploySchema) -> dict[str, Any]:
    """The `user_config` of each deployment of each application."""
    return {
        app.name: {
            f"deployments.{entry.name}.user_config": settings
            for entry in app.deployments
            if (settings := live_settings(app, entry.name))
        }
        for app in config.applications
    }


def _kept(config: ServeDeploySchema) -> dict[str, Any]:
    """Of each application what may change in place."""
    return {
        name: {place: value for place, value in app.items() if place.split(".")[-1] in _IN_PLACE}
        for name, app in _applications(config).items()
    }


def _without_live(config: ServeDeploySchema) -> dict[str, Any]:
    """The file as a dict."""
    dumped = config.model_dump(exclude_unset=True)
    return dumped | {"applications": _applications(config)}


def _applications(config: ServeDeploySchema) -> dict[str, dict[str, Any]]:
    """The applications by name, with all options of deployments by place, but no live settings."""
    dumped = config.model_dump(exclude_unset=True)["applications"]
    return {
        app.name: {key: value for key, value in said.items() if key != "deployments"}
        | _options(said.get("deployments", ()))
        for app, said in zip(config.applications, dumped, strict=True)
    }


def _options(entries: list[dict[str, Any]]) -> dict[str, Any]:
    options = {}
    for entry in entries:
        place = f"deployments.{entry['name']}"
        for name, value in entry.items():
            if name == "autoscaling_config" and isinstance(value, dict) and "policy" in value:
                options[f"{place}.{name}.policy"] = value["policy"]
                value = {key: setting for key, setting in value.items() if key != "policy"}
            if name not in ("name", "user_config"):
                options[f"{place}.{name}"] = value
    return options


def _differences(before: Any, after: Any, place: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            inner = f"{place}.{key}" if place else str(key)
            yield from _differences(before.get(key, _ABSENT), after.get(key, _ABSENT), inner)
    elif before != after:
        yield place
