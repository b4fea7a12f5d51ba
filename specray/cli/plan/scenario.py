"""From a config file, or the names of models and GPUs, to what is simulated."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from specray.control.hardware import PROFILES, HardwareProfile, find_profile
from specray.control.model_shape import shape_of
from specray.control.roofline import Roofline
from specray.errors import InvalidConfigError
from specray.models.size import read_size
from specray.serve.check import Application, check_file
from specray.serve.config_file import BUILDER, read_file
from specray.serve.memory import TargetMemory, engine_memory, read_batch
from specray.serve.settings import AppArgs, source_of, validate
from specray.simulate.agreement import read_agreement
from specray.simulate.arrivals import Arrival, Lengths, read_arrivals
from specray.simulate.cluster import ClusterSettings
from specray.simulate.draft import DraftSettings
from specray.simulate.network import NetworkSettings
from specray.simulate.sizing import Prices, Scenario
from specray.simulate.step_laws import ConstantSteps
from specray.simulate.target import TargetSettings
from specray.types import SpeculationPolicy

_LOOK_UP_S = 50e-6  # of a batch; loadtest/results/draft-speed-h200-d15f021.json has 47 for one
# A pass over a piece of a prompt is launched kernel by kernel, and not replayed: 7.5 ms instead of
# the 2 ms of `--draft-overhead-ms` (the same file, with CUDA graphs and without).
_PREFILL_LAUNCHES_S = 5.5e-3
_PROMPT_LOOKUP: Final = "prompt_lookup"


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


@dataclass(frozen=True, slots=True)
class _Deployment:
    """The models and the GPUs, whoever named them."""

    target: str
    hardware: str
    draft: str  # a model, or `prompt_lookup`
    draft_hardware: str  # empty: the target's
    gpus_per_draft: float
    policy: SpeculationPolicy
    options: Mapping[str, Any] = field(default_factory=dict)  # vLLM's, of the target


def make_scenario(args: argparse.Namespace) -> tuple[Scenario, Facts]:
    """What `specray plan` simulates.

    Raises:
        InvalidConfigError: naming the option or the field that is missing or faulty.
    """
    deployment = _with_options(_from_file(args.config, args.draft) if args.config else None, args)
    target_profile = _profile("--hardware", deployment.hardware)
    memory = _memory(deployment)
    target = Roofline(
        shape_of(memory.size),
        target_profile,
        memory.num_ranks,
        args.overhead_ms / 1e3,
        args.efficiency,
    )
    replayed = read_arrivals(args.arrivals) if args.arrivals else ()
    lengths = _lengths(args, replayed)
    batch = read_batch(deployment.options, deployment.policy.max_depth)
    cluster = ClusterSettings(
        TargetSettings(
            target,
            deployment.policy,
            batch.num_sequences,
            batch.num_tokens,
            _num_kv_tokens(memory, deployment.hardware, lengths, replayed),
            prior=replace(target, overhead_s=0.0, efficiency=1.0),
            verify_overhead_s=args.verify_overhead_ms / 1e3,
        ),
        _draft(deployment, args),
        num_targets=args.targets,
        network=NetworkSettings(args.network_ms / 1e3),
    )
    scenario = Scenario(
        cluster,
        memory.num_ranks,
        deployment.gpus_per_draft,
        lengths,
        read_agreement(args.acceptance),
        Prices(args.gpu_price, args.draft_gpu_price or args.gpu_price),
        args.pattern,
        replayed,
        args.cached_tokens,
        args.seconds,
        args.seed,
    )
    return scenario, _facts(deployment, memory, lengths, args)


def _lengths(args: argparse.Namespace, replayed: Sequence[Arrival]) -> Lengths:
    """What was asked for; of a recording its own means."""
    if not replayed:
        return Lengths(args.prompt_tokens, args.answer_tokens, args.spread)
    prompt = fmean(arrival.num_prompt_tokens for arrival in replayed)
    answer = fmean(arrival.num_answer_tokens for arrival in replayed)
    return Lengths(prompt, answer, args.spread)


def _with_options(found: _Deployment | None, args: argparse.Namespace) -> _Deployment:
    if found is None:
        missing = [n for n in ("target", "draft", "hardware") if getattr(args, n) is None]
        if missing:
            raise InvalidConfigError(
                f"--{missing[0]}: missing; give a config file, or --target, --draft and --hardware"
            )
        found = _Deployment(args.target, args.hardware, args.draft, "", 0.0, SpeculationPolicy())
    named = {
        "target": args.target,
        "hardware": args.hardware,
        "draft": args.draft,
        "draft_hardware": args.draft_hardware,
    }
    found = replace(found, **{name: value for name, value in named.items() if value is not None})
    if args.tp is not None:
        found = replace(found, options={**found.options, "tensor_parallel_size": args.tp})
    if not found.draft_hardware:
        found = replace(found, draft_hardware=found.hardware)
    if args.draft == _PROMPT_LOOKUP:
        found = replace(found, gpus_per_draft=0.0)
    elif found.draft != _PROMPT_LOOKUP and not found.gpus_per_draft:
        found = replace(found, gpus_per_draft=1.0)  # of whose speed it is, wherever the file has it
    if args.max_depth is not None:
        found = replace(found, policy=replace(found.policy, max_depth=args.max_depth))
    if found.policy.max_depth == 0:
        raise InvalidConfigError("speculation.max_depth: 0 leaves nothing to plan; --max-depth 5?")
    return found


def _from_file(path: Path, draft: str | None) -> _Deployment:
    applications = check_file(path).applications
    if not applications:
        raise InvalidConfigError(f"{path}: has no application whose import_path is {BUILDER}")
    found = applications[0]
    config = next(app for app in read_file(path).applications if app.name == found.name)
    settings = validate(config.args)
    if settings.draft.method == "none" and draft is None:
        raise InvalidConfigError(
            f"{path}: draft.method none: there are no drafts to plan, and what drafts inside the "
            "target is not simulated; --draft names a model, or prompt_lookup, to plan with"
        )
    return _from_application(found, settings)


def _from_application(found: Application, args: AppArgs) -> _Deployment:
    pools = {pool.role: pool for pool in reversed(found.pools)}
    draft = pools.get("draft")
    return _Deployment(
        source_of(args.target) or args.target.model_id,
        pools["target"].accelerator_type or "",
        found.draft_model or _PROMPT_LOOKUP,
        (draft.accelerator_type if draft else None) or "",
        draft.gpus if draft else 0.0,
        args.speculation.policy,
        args.target.engine_kwargs,
    )


def _memory(deployment: _Deployment) -> TargetMemory:
    memory = engine_memory(
        deployment.target, deployment.options, deployment.hardware, deployment.policy.max_depth
    )
    if memory is None:
        raise _unknown_size("--target", deployment.target)
    return memory


def _num_kv_tokens(
    memory: TargetMemory, hardware: str, lengths: Lengths, replayed: Sequence[Arrival]
) -> int:
    """The room of a target's KV cache, in which even the longest recorded request has to fit."""
    needed, request = lengths.prompt + lengths.answer, "a request"
    options = "--prompt-tokens and --answer-tokens"
    if replayed:
        needed = max(a.num_prompt_tokens + a.num_answer_tokens for a in replayed)
        request, options = "the longest request", "--arrivals"
    num_tokens = max(memory.room_for(room, round(needed)) for room in memory.rooms)
    if num_tokens < needed:
        raise InvalidConfigError(
            f"{memory.model} leaves room for {max(0, num_tokens)} tokens of KV cache on "
            f"{memory.num_ranks} × {hardware}, and {request} takes {needed:.0f}; give more GPUs "
            f"with --tp, larger ones with --hardware, or shorter requests with {options}"
        )
    return num_tokens


def _draft(deployment: _Deployment, args: argparse.Namespace) -> DraftSettings:
    if deployment.draft == _PROMPT_LOOKUP:
        return DraftSettings(ConstantSteps(_LOOK_UP_S), _PROMPT_LOOKUP, ahead_hit_rate=1.0)
    size = read_size(deployment.draft)
    if size is None or not size.has_plain_attention:
        raise _unknown_size("--draft", deployment.draft)
    law = Roofline(
        shape_of(size),
        _profile("--draft-hardware", deployment.draft_hardware),
        1,
        args.draft_overhead_ms / 1e3,
        args.efficiency,
    )
    return DraftSettings(law, ahead_hit_rate=args.ahead, prefill_overhead_s=_PREFILL_LAUNCHES_S)


def _unknown_size(option: str, model: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"{option}: the size of {model} is not known here: it is in no folder, our table lacks it "
        "and its hub can't be reached"
    )


def _profile(option: str, name: str) -> HardwareProfile:
    found = find_profile(name)
    if found is None:
        raise InvalidConfigError(
            f"{option}: {name or 'nothing'!r} is no GPU that we know; there are "
            f"{', '.join(PROFILES)}"
        )
    return found


def _facts(
    deployment: _Deployment, memory: TargetMemory, lengths: Lengths, args: argparse.Namespace
) -> Facts:
    is_lookup = deployment.draft == _PROMPT_LOOKUP
    told = f"prompts of {lengths.prompt:g}, answers of {lengths.answer:g} tokens"
    return Facts(
        target=memory.model,
        target_gpus=f"{memory.num_ranks} × {deployment.hardware}",
        draft=deployment.draft,
        draft_gpus="no GPU" if is_lookup else f"1 × {deployment.draft_hardware}",
        num_targets=args.targets,
        acceptance=args.acceptance,
        load=f"{args.arrivals or args.pattern}, {told}",
        max_depth=deployment.policy.max_depth,
        seed=args.seed,
    )
