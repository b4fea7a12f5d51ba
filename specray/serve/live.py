"""What of a config file may change while it is served: the deployments' `user_config`."""

from typing import Any

from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeApplicationSchema

from specray.config import DraftConfig, LiveDraftConfig, LivePolicyConfig
from specray.errors import InvalidConfigError
from specray.serve.app import pool_names, target_name
from specray.serve.pools import Pool, read_pools
from specray.serve.settings import AppArgs, field
from specray.serve.user_config import check_by_hand

_MODELS: dict[str, type[BaseModel]] = {"controller": LivePolicyConfig, "draft": LiveDraftConfig}


def check_deployments(app: ServeApplicationSchema, args: AppArgs) -> tuple[Pool, ...]:
    """The pools of an application of ours, once all that its `deployments` say is checked.

    Raises:
        InvalidConfigError: Serve would refuse it, or replicas would end over it.
    """
    overrides = {entry.name: entry.model_dump(exclude_unset=True) for entry in app.deployments}
    pools = read_pools(args, overrides)
    names = {target_name(target) for target in args.targets} if args.speculation.max_depth else ()
    if replaced := [name for name in names if "ray_actor_options" in overrides.get(name, {})]:
        raise InvalidConfigError(
            f"deployments.{replaced[0]}.ray_actor_options would replace what specray sets; give "
            "them in the target's deployment_config"
        )
    check_user_configs(app, args.draft)
    check_pools_by_hand(app, args)
    return pools


def check_user_configs(app: ServeApplicationSchema, draft: DraftConfig) -> None:
    """Checks the live settings of an application of ours.

    Raises:
        InvalidConfigError: naming each faulty field, or settings that a deployment does not have.
    """
    faults = [
        f"deployments.{'.'.join((name, 'user_config', *map(str, fault['loc'])))}: "
        f"{fault['msg']} (got {fault['input']!r:.80})"
        for name, model in _MODELS.items()
        for fault in _faults(model, live_settings(app, name))
    ]
    faults += [
        f"deployments.{entry.name}.user_config: only {' and '.join(_MODELS)} have live settings"
        for entry in app.deployments
        if entry.name not in _MODELS and isinstance(entry.user_config, dict)
    ]
    if faults:
        raise InvalidConfigError("\n".join(faults))
    settings = live_settings(app, "draft")
    if "sources" in settings and draft.method not in ("hybrid", "ngram"):
        raise InvalidConfigError(
            f"deployments.draft.user_config: {settings} is for a draft with several sources; "
            f"draft.method is {draft.method}"
        )
    named = set(settings.get("sources") or ())
    if "ngram" in named and "model" not in named and not draft.uses_ngrams:
        raise InvalidConfigError(
            "deployments.draft.user_config.sources: names ngram, of which the draft has none; name "
            "its folder in `draft.ngram`, or leave it out"
        )
    if "simulation" in settings and draft.simulation is None:
        raise InvalidConfigError(
            "deployments.draft.user_config.simulation: needs `draft.simulation` in the args, which "
            "puts a delay line in front of the draft when it starts"
        )


def check_pools_by_hand(app: ServeApplicationSchema, args: AppArgs) -> None:
    """Checks that replicas are chosen by hand for pools that there are.

    Raises:
        InvalidConfigError: naming the pool.
    """
    with field("deployments.controller.user_config"):
        wanted = live_settings(app, "controller").get("num_replicas") or {}
        check_by_hand(wanted, pool_names(args))


def live_settings(app: ServeApplicationSchema, name: str) -> dict[str, Any]:
    """The `user_config` the file gives a deployment; none where it names it for other options."""
    # Serve's schema stands in for what the file does not say with a value that is not None.
    given = [
        entry.user_config
        for entry in app.deployments
        if entry.name == name and "user_config" in entry.model_fields_set
    ]
    return (given[-1] if given else None) or {}  # the last is the one that Serve applies


def _faults(model: type[BaseModel], settings: dict[str, Any]) -> list[Any]:
    try:
        model.model_validate(settings)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []
