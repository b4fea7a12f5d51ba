"""What a file allows, but its author hardly wants."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ray.serve.llm import LLMConfig

from specray.config import ModelDraftConfig
from specray.models.quantization import REFUSED_METHODS
from specray.serve.gpus import memory_of
from specray.serve.memory import DraftMemory, TargetMemory
from specray.serve.pools import Pool
from specray.serve.settings import AppArgs
from specray.serve.tenants import is_hashed, looks_hashed

_GIB = 1 << 30
_LARGEST_DRAFT = 0.2  # of the target's parameters; the literature's pairs are at 1 to 5 %
_SMALL = 500_000_000  # parameters, of which most are embeddings, which cost a draft little
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Target:
    """A target pool."""

    place: str  # its field in the file
    config: LLMConfig
    pool: Pool
    memory: TargetMemory | None

    def option(self, name: str) -> Any:
        """One of vLLM's options; None if it is left to vLLM."""
        return self.config.engine_kwargs.get(name)


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft pool of an application, if its drafts have a model."""

    config: ModelDraftConfig
    pool: Pool
    memory: DraftMemory | None


def advise(
    args: AppArgs,
    targets: tuple[Target, ...],
    draft: Draft | None,
    user_config: dict[str, Any],
    is_on_one_node: bool,
) -> tuple[str, ...]:
    """Warnings, each with its field first.

    Args:
        args: the application's arguments.
        targets: its target pools.
        draft: its draft pool, if that has a model.
        user_config: the controller's.
        is_on_one_node: whether the file keeps Serve to the head node.
    """
    warnings = [*_about_speculation(args, user_config, is_on_one_node)]
    for target in targets:
        warnings += _about_target(target)
        if draft is not None:
            warnings += _about_pair(target, draft)
    if draft is not None:
        warnings += _about_draft(draft)
        warnings += _about_sessions(targets, draft)
    return tuple(warnings)


def _about_speculation(
    args: AppArgs, user_config: dict[str, Any], is_on_one_node: bool
) -> Iterator[str]:
    depth = args.speculation.max_depth
    if depth == 0:
        yield "speculation.max_depth: 0 serves without speculation, and without drafts"
    wanted = user_config.get("max_depth")
    if isinstance(wanted, int) and wanted > depth:
        yield (
            f"deployments.controller.user_config.max_depth: {wanted} is more than "
            f"speculation.max_depth {depth}, which holds for the life of the target"
        )
    host = args.speculation.listen_host
    if host != "auto" and not is_on_one_node:
        why = "can't be reached from other nodes" if host in _LOOPBACK else "is one node's address"
        yield (
            f"speculation.listen_host: {host} {why}; leave it at `auto`, or set proxy_location: "
            "HeadOnly for one machine"
        )
    header = args.router.tenant_header
    hashed = [
        name for name in args.draft.weights if name and is_hashed(header) and not looks_hashed(name)
    ]
    if hashed:
        yield (
            f"draft.weights.{hashed[0]}: tenants are known by the first 12 hexadecimal digits of "
            f"the sha256 of `{header}`, so this is nobody's; name another router.tenant_header, "
            "or these digits"
        )
    options = args.router.deployment_config
    if "num_replicas" in options and options.get("autoscaling_config"):
        yield (
            "router.deployment_config: num_replicas is taken and autoscaling_config ignored; "
            "keep one of them"
        )


def _about_target(target: Target) -> Iterator[str]:
    options = f"{target.place}.engine_kwargs"
    if target.option("enable_prefix_caching") is False:
        yield f"{options}.enable_prefix_caching: off, so shared prompts are computed each time"
    if target.option("kv_transfer_config"):
        yield (
            f"{options}.kv_transfer_config: moving keys and values between engines, as for prefill "
            "and decode apart, has never been run beside our scheduler"
        )
    concurrent = target.config.deployment_config.get("max_ongoing_requests")
    sequences = target.option("max_num_seqs")
    if concurrent and sequences and concurrent < sequences:
        yield (
            f"{target.place}.deployment_config.max_ongoing_requests: {concurrent} requests never "
            f"fill max_num_seqs {sequences}"
        )
    memory = target.memory
    if memory is None:
        return
    method = memory.size.quantization
    if method in REFUSED_METHODS and not target.option("allow_deprecated_quantization"):
        yield (
            f"{options}.allow_deprecated_quantization: unless it is true vLLM refuses the "
            f"checkpoint, whose method {method} is deprecated"
        )
    if memory.max_model_len > memory.size.max_positions:
        yield (
            f"{options}.max_model_len: {memory.max_model_len} is more than the model's "
            f"{memory.size.max_positions} positions, which vLLM refuses"
        )
    for room in memory.rooms:
        if room.num_tokens < memory.max_model_len:
            found = "not even its weights" if room.num_tokens < 0 else f"{room.num_tokens:,} tokens"
            yield (
                f"{options}: on {room.place} there is room for {found}, less than one request of "
                f"max_model_len {memory.max_model_len:,}, which vLLM refuses; take more or larger "
                "GPUs, or a smaller max_model_len"
            )


def _about_pair(target: Target, draft: Draft) -> Iterator[str]:
    if target.memory is None or draft.memory is None:
        return
    size = target.memory.size
    ratio = draft.memory.size.num_active_parameters / size.num_active_parameters
    is_large = ratio > _LARGEST_DRAFT and size.num_active_parameters > _SMALL
    if is_large or ratio >= 1:  # that of a small target may be larger, but not as large
        parameters = "active parameters" if size.experts else "parameters"
        yield (
            f"draft.model.model: it has {ratio:.0%} of the {parameters} of "
            f"{target.config.model_id}; beyond {_LARGEST_DRAFT:.0%} drafting hardly ever pays"
        )
    longest = target.memory.max_model_len
    limits = {
        "model": (draft.memory.size.max_positions, "positions"),
        "max_tokens": (draft.config.max_tokens, "tokens of KV cache"),
    }
    for name, (limit, unit) in limits.items():
        if limit < longest:
            yield (
                f"draft.model.{name}: has {limit:,} {unit}; requests of {target.config.model_id} "
                f"beyond that, up to {longest:,}, are decoded without a draft"
            )


def _about_draft(draft: Draft) -> Iterator[str]:
    if draft.config.device == "cuda" and draft.pool.gpus == 0:
        yield (
            "draft.deployment_config.ray_actor_options.num_gpus: 0, but draft.model.device is "
            "cuda: Ray hides all GPUs from it"
        )
    if draft.pool.gpus > 1:
        yield (
            "draft.deployment_config.ray_actor_options.num_gpus: "
            f"{draft.pool.gpus:g}, but a draft computes on one; take more replicas"
        )
    totals = memory_of(draft.pool.accelerator_type)
    if draft.memory is None or draft.pool.gpus == 0 or not totals:
        return
    room = min(totals) * draft.pool.share_of_gpu
    if draft.memory.total_bytes > room:
        yield (
            "draft.model.max_tokens: weights, KV cache and any working copy of it take "
            f"{draft.memory.total_bytes / _GIB:.1f} GiB, its share of a "
            f"{draft.pool.accelerator_type} is {room / _GIB:.1f} GiB; lower max_tokens"
        )


def _about_sessions(targets: tuple[Target, ...], draft: Draft) -> Iterator[str]:
    limits = [_most_requests(target) for target in targets]
    if not all(limits):
        return
    replicas = [target.pool.max_replicas for target in targets]
    requests = sum(limit * number for limit, number in zip(limits, replicas, strict=True))
    sessions = draft.config.max_sessions * draft.pool.max_replicas
    if sessions < requests:
        yield (
            f"draft.model.max_sessions: {draft.pool.max_replicas} × {draft.config.max_sessions} "
            f"sessions for up to {requests} requests at once; the idlest are evicted and prefilled "
            "again"
        )


def _most_requests(target: Target) -> int:
    """That a replica takes, those in its queue among them; 0 if the file does not say."""
    taken = target.config.deployment_config.get("max_ongoing_requests")
    return int(taken or target.option("max_num_seqs") or 0)
