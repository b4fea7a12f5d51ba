"""Ray Serve's application-level autoscaling policy: the controller's wishes, within Serve's bounds.

Named in a config file as `autoscaling_policy: {policy_function: specray.serve.scaling:scale_pools}`
of the application. Runs in Serve's controller, some ten times a second, and so only reads what
specray's controller has left there. Serve then applies each deployment's `autoscaling_config`:
bounds, delays and factors.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy

# Serve ships this module alone, by value: it may import nothing of specray.
WISH = "specray_replicas:"
_CONTROLLER = "controller"
_POOLS = ("draft", "target:")  # beginnings of the deployments' names that the controller decides on


def wish(deployment: str) -> str:
    """The name under which the controller records its wish for a deployment."""
    return f"{WISH}{deployment}"


def scale_pools(contexts: Mapping[Any, Any]) -> tuple[dict[Any, float], dict[Any, Any]]:
    """The number of replicas that each deployment should have.

    Without a wish (the controller is being replaced, or has not heard of everyone yet) a pool keeps
    what it has. Deployments of other kinds are scaled as Serve would without this policy.

    Args:
        contexts: Serve's `AutoscalingContext` of each deployment that has an `autoscaling_config`.

    Returns:
        The numbers, and a state that is not needed.
    """
    wishes = dict(_wishes(contexts))
    wanted = {}
    for deployment_id, context in contexts.items():
        name = context.deployment_name
        if name in wishes:
            wanted[deployment_id] = wishes[name]
        elif name == _CONTROLLER or name.startswith(_POOLS):
            wanted[deployment_id] = context.target_num_replicas
        else:
            wanted[deployment_id] = replica_queue_length_autoscaling_policy(context)[0]
    return wanted, {}


def _wishes(contexts: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    """The latest of each deployment; two controllers may live for a moment."""
    for context in contexts.values():
        if context.deployment_name != _CONTROLLER:
            continue
        for name, by_replica in (context.raw_metrics or {}).items():
            points = [series[-1] for series in by_replica.values() if series]
            if name.startswith(WISH) and points:
                yield name[len(WISH) :], max(points, key=lambda point: point.timestamp).value
