"""From a config file, or the names of models and GPUs, to what is simulated."""

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from specray.control.hardware import PROFILES, HardwareProfile, find_profile
from specray.control.roofline import ModelShape, Roofline
from specray.errors import InvalidConfigError
from specray.models import ModelSize, read_size
from specray.serve.check import BUILDER, Application, check_file
from specray.serve.config_file import read_file
from specray.serve.memory import BATCHED_TOKENS, SEQUENCES, Batch, kv_room
from specray.serve.settings import AppArgs, validate
from specray.simulate.agreement import read_agreement
from specray.simulate.arrivals import Lengths, read_arrivals
from specray.simulate.cluster import ClusterSettings
from specray.simulate.draft import DraftSettings
from specray.simulate.network import NetworkSettings
from specray.simulate.sizing import Prices, Scenario
from specray.simulate.step_laws import ConstantSteps
from specray.simulate.target import TargetSettings
from specray.types import SpeculationPolicy

_LOOK_UP_S = 50e-6  # of a batch; README, "Choosing a draft"
_PROMPT_LOOKUP: Final = "prompt_lookup"
_ANY_NUMBER = 1 << 40  # of KV tokens, where the memory of the GPUs is not known


@dataclass(frozen=True, slots=True)
class Facts:
    """What the plan is about, for its title."""

    target: str
    target_gpus: str
    draft: str
    draft_gpus: str
    num_targets: int
    acceptance: str
    load: str
    max_depth: int
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Deployment:
    """The models and the GPUs, whoever named them."""

    target: str
    hardware: str
    num_ranks: int
    draft: str  # a model, or `prompt_lookup`
    draft_hardware: str
    gpus_per_draft: float
    policy: SpeculationPolicy
    max_num_seqs: int = SEQUENCES
    max_num_batched_tokens: int = BATCHED_TOKENS
    num_kv_tokens: int | None = None  # None: follows from the model and its GPUs
    quantization: str | None = None


def make_scenario(args: argparse.Namespace) -> tuple[Scenario, Facts]:
    """What `specray plan` simulates.

    Raises:
        InvalidConfigError: naming the option or the field that is missing or faulty.
    """
    deployment = _with_options(_from_file(args.config) if args.config else None, args)
    target_profile = _profile("--hardware", deployment.hardware)
    target = Roofline(
        _shape("--target", deployment.target, deployment.quantization),
        target_profile,
        deployment.num_ranks,
        args.overhead_ms / 1e3,
        args.efficiency,
    )
    lengths = Lengths(args.prompt_tokens, args.answer_tokens, args.spread)
    cluster = ClusterSettings(
        TargetSettings(
            target,
            deployment.policy,
            deployment.max_num_seqs,
            deployment.max_num_batched_tokens,
            _num_kv_tokens(deployment, args),
            prior=replace(target, overhead_s=0.0, efficiency=1.0),
        ),
        _draft(deployment, args),
        num_targets=args.targets,
        network=NetworkSettings(args.network_ms / 1e3),
    )
    scenario = Scenario(
        cluster,
        deployment.num_ranks,
        deployment.gpus_per_draft,
        lengths,
        read_agreement(args.acceptance),
        Prices(args.gpu_price, args.draft_gpu_price or args.gpu_price),
        args.pattern,
        read_arrivals(args.arrivals) if args.arrivals else (),
        args.cached_tokens,
        args.seconds,
        args.seed,
    )
    return scenario, _facts(deployment, args)


def _with_options(found: _Deployment | None, args: argparse.Namespace) -> _Deployment:
    if found is None:
        missing = [n for n in ("target", "draft", "hardware") if getattr(args, n) is None]
        if missing:
            raise InvalidConfigError(
                f"--{missing[0]}: missing; give a config file, or --target, --draft and --hardware"
            )
        found = _Deployment(
            args.target, args.hardware, 1, args.draft, args.hardware, 1.0, SpeculationPolicy()
        )
    named = {
        "target": args.target,
        "hardware": args.hardware,
        "num_ranks": args.tp,
        "draft": args.draft,
        "draft_hardware": args.draft_hardware,
    }
    given = {name: value for name, value in named.items() if value is not None}
    if given.keys() & {"target", "hardware", "num_ranks"}:
        given["num_kv_tokens"] = None  # the file's was of another model, or of other GPUs
    found = replace(found, **given)
    if args.draft == _PROMPT_LOOKUP:
        found = replace(found, gpus_per_draft=0.0)
    if args.max_depth is not None:
        found = replace(found, policy=replace(found.policy, max_depth=args.max_depth))
    if found.policy.max_depth == 0:
        raise InvalidConfigError("speculation.max_depth: 0 leaves nothing to plan; --max-depth 5?")
    return found


def _from_file(path: Path) -> _Deployment:
    applications = check_file(path).applications
    if not applications:
        raise InvalidConfigError(f"{path}: has no application whose import_path is {BUILDER}")
    found = applications[0]
    config = next(app for app in read_file(path).applications if app.name == found.name)
    settings = validate(config.args)
    return _from_application(path, found, settings)


def _from_application(path: Path, found: Application, args: AppArgs) -> _Deployment:
    options = args.target.engine_kwargs
    memory = found.targets[args.target.model_id]
    if memory is None:
        raise InvalidConfigError(
            f"{path}: target.model_loading_config: the size of {args.target.model_id} is not known "
            "here; give its folder with --target"
        )
    pools = {pool.role: pool for pool in reversed(found.pools)}
    draft = pools.get("draft")
    hardware = pools["target"].accelerator_type or ""
    rooms = [room.num_tokens for room in memory.rooms]
    return _Deployment(
        memory.model,
        hardware,
        memory.num_ranks,
        found.draft_model or _PROMPT_LOOKUP,
        (draft.accelerator_type if draft else None) or hardware,
        draft.gpus if draft else 0.0,
        args.speculation.policy,
        int(options.get("max_num_seqs") or SEQUENCES),
        int(options.get("max_num_batched_tokens") or BATCHED_TOKENS),
        max(rooms, default=None),
        options.get("quantization"),
    )


def _num_kv_tokens(deployment: _Deployment, args: argparse.Namespace) -> int:
    """The room of a target's KV cache, which at least one request has to find there."""
    room = deployment.num_kv_tokens
    if room is None:
        size = _size("--target", deployment.target, deployment.quantization)
        batch = Batch(
            deployment.max_num_seqs,
            deployment.max_num_batched_tokens,
            deployment.policy.max_depth,
        )
        found = kv_room(size, deployment.num_ranks, deployment.hardware, batch)
        room = _ANY_NUMBER if found is None else found
    needed = args.prompt_tokens + args.answer_tokens
    if room < needed:
        raise InvalidConfigError(
            f"--tp: {deployment.target} leaves room for {max(0, room)} tokens of KV cache on "
            f"{deployment.num_ranks} × {deployment.hardware}, and a request takes {needed:g}; give "
            "more GPUs with --tp, or larger ones with --hardware"
        )
    return room


def _draft(deployment: _Deployment, args: argparse.Namespace) -> DraftSettings:
    if deployment.draft == _PROMPT_LOOKUP:
        return DraftSettings(ConstantSteps(_LOOK_UP_S), _PROMPT_LOOKUP, ahead_hit_rate=1.0)
    law = Roofline(
        _shape("--draft", deployment.draft, None),
        _profile("--draft-hardware", deployment.draft_hardware),
        1,
        args.draft_overhead_ms / 1e3,
        args.efficiency,
    )
    return DraftSettings(law, ahead_hit_rate=args.ahead)


def _shape(option: str, model: str, quantization: str | None) -> ModelShape:
    return shape_of(_size(option, model, quantization))


def _size(option: str, model: str, quantization: str | None) -> ModelSize:
    size = read_size(model, quantization)
    if size is None:
        raise InvalidConfigError(
            f"{option}: the size of {model} is not known here: it is in no folder, our table lacks "
            "it and its hub can't be reached"
        )
    return size


def shape_of(size: ModelSize) -> ModelShape:
    """What a model's step moves and computes; FP8 weights are multiplied in FP8."""
    is_eight_bits = size.num_quantized > size.num_parameters / 2 and size.quantized_bits == 8
    return ModelShape(
        num_parameters=size.num_parameters,
        weight_bytes=size.weight_bytes(),
        kv_bytes_per_token=size.kv_bytes_per_token(),
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        dtype="fp8" if is_eight_bits else size.dtype,
        attention_width=size.num_heads * size.head_dim,
    )


def _profile(option: str, name: str) -> HardwareProfile:
    found = find_profile(name)
    if found is None:
        raise InvalidConfigError(
            f"{option}: {name or 'nothing'!r} is no GPU that we know; there are "
            f"{', '.join(PROFILES)}"
        )
    return found


def _facts(deployment: _Deployment, args: argparse.Namespace) -> Facts:
    is_lookup = deployment.draft == _PROMPT_LOOKUP
    lengths = f"prompts of {args.prompt_tokens:g}, answers of {args.answer_tokens:g} tokens"
    return Facts(
        target=deployment.target,
        target_gpus=f"{deployment.num_ranks} × {deployment.hardware}",
        draft=deployment.draft,
        draft_gpus="no GPU" if is_lookup else f"1 × {deployment.draft_hardware}",
        num_targets=args.targets,
        acceptance=args.acceptance,
        load=f"{args.arrivals or args.pattern}, {lengths}",
        max_depth=deployment.policy.max_depth,
        seed=args.seed,
    )
