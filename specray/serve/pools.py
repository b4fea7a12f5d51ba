"""Which deployments an application makes, and what each asks of the cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.llm import LLMConfig

from specray.errors import InvalidConfigError
from specray.serve.app import (
    controller_deployment,
    draft_deployment,
    router_deployment,
    target_name,
)
from specray.serve.settings import AppArgs, field, places_of_targets
from specray.serve.target_server import TargetServer

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pool:
    """The replicas of one deployment. Resources are those of one replica."""

    name: str
    role: Literal["router", "controller", "target", "draft"]
    min_replicas: int
    max_replicas: int
    cpus: float
    gpus: float
    accelerator_type: str | None  # Ray's name of the GPU that it is placed on; None: any

    @property
    def share_of_gpu(self) -> float:
        """The share of one GPU: 1, or a fraction of a shared one."""
        return min(1.0, self.gpus)


def read_pools(args: AppArgs, overrides: Mapping[str, Options]) -> tuple[Pool, ...]:
    """The pools of an application.

    Args:
        args: its arguments.
        overrides: what its `deployments` change, by the deployment's name.

    Raises:
        InvalidConfigError: Ray would refuse the options; the message names their field.
    """
    pools = tuple(_pools(args, overrides))
    unknown = overrides.keys() - {pool.name for pool in pools}
    if unknown:
        raise InvalidConfigError(
            f"deployments: {min(unknown)!r} is none of this application's deployments; they are "
            f"{', '.join(pool.name for pool in pools)}"
        )
    return pools


def _pools(args: AppArgs, overrides: Mapping[str, Options]) -> Iterator[Pool]:
    yield _pool("router", router_deployment(args), overrides)
    yield _pool("controller", controller_deployment(), overrides)
    for target, place in zip(args.targets, places_of_targets(args), strict=True):
        yield _target_pool(target, place, overrides)
    if args.has_drafts:
        yield _pool("draft", draft_deployment(args), overrides)


def _target_pool(target: LLMConfig, place: str, overrides: Mapping[str, Options]) -> Pool:
    with _refused(f"{place}.engine_kwargs"):
        bundles = target.get_engine_config().placement_bundles
    with _refused(f"{place}.deployment_config"):
        options = target.deployment_config | {"name": target_name(target)}
        deployment = serve.deployment(TargetServer, **options)
    pool = _pool("target", deployment, overrides)
    return Pool(
        pool.name,
        "target",
        pool.min_replicas,
        pool.max_replicas,
        pool.cpus + sum(bundle.get("CPU", 0) for bundle in bundles),
        pool.gpus + sum(bundle.get("GPU", 0) for bundle in bundles),
        target.accelerator_type or pool.accelerator_type,
    )


def _pool(
    role: Literal["router", "controller", "target", "draft"],
    deployment: Any,
    overrides: Mapping[str, Options],
) -> Pool:
    override = overrides.get(deployment.name, {})
    actor = override.get("ray_actor_options") or deployment.ray_actor_options or {}
    least, most = _replicas(deployment, override)
    return Pool(
        deployment.name,
        role,
        least,
        most,
        1.0 if actor.get("num_cpus") is None else actor["num_cpus"],  # Ray's own default
        actor.get("num_gpus") or 0.0,
        actor.get("accelerator_type"),
    )


def _replicas(deployment: Any, override: Options) -> tuple[int, int]:
    """The least and the most of them; an override replaces whichever of the two ways it names."""
    scaling: Mapping[str, Any] | None = override.get("autoscaling_config")
    fixed = override.get("num_replicas")
    if scaling is None and not isinstance(fixed, int):
        own = deployment._deployment_config.autoscaling_config
        scaling = own.model_dump() if own else None
        if fixed != "auto":
            fixed = deployment.num_replicas
    if fixed == "auto":
        scaling = AutoscalingConfig.default().model_dump() | dict(scaling or {})
    if scaling is None:
        return int(fixed or 1), int(fixed or 1)
    return scaling.get("min_replicas", 1), scaling.get("max_replicas", 1)


class _refused(field):  # noqa: N801 - reads as a statement
    """As its base, for what Ray and vLLM raise about options."""

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, (ValueError, TypeError)):
            error = InvalidConfigError(str(error))
        super().__exit__(kind, error, traceback)
