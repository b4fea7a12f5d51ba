"""What `specray check` found, as text."""

from collections.abc import Iterator
from pathlib import Path

from specray.models.size import ModelSize
from specray.serve.changes import Changes
from specray.serve.check import Application, FileReport
from specray.serve.gpus import smallest_with
from specray.serve.memory import DraftMemory, TargetMemory
from specray.serve.pools import Pool

_GIB = 1 << 30


def text(path: Path, report: FileReport) -> str:
    """A report for people."""
    return "\n".join(_file_lines(path, report))


def change_lines(served: Path, changes: Changes) -> Iterator[str]:
    """What would change if the file took the place of the one that is served."""
    yield f"against {served}:"
    if not any(changes):
        yield "  nothing changes"
    yield from (f"  live, within seconds: {place}" for place in changes.live)
    yield from (f"  in place, replicas stay: {place}" for place in changes.in_place)
    yield from (f"  by replacing replicas: {place}" for place in changes.beyond)


def _file_lines(path: Path, report: FileReport) -> Iterator[str]:
    for application in report.applications:
        yield f"application {application.name} at {application.route_prefix}"
        yield ""
        yield from _pool_lines(application.pools)
        yield ""
        for model_id, memory in application.targets.items():
            yield from _target_lines(model_id, memory)
            if model_id in application.engine_drafters:
                yield f"    drafter   {application.engine_drafters[model_id]}"
        yield from _draft_lines(application)
        yield f"  tokenizers  {application.tokenizers}"
        yield ""
        yield from (f"  warning: {warning}" for warning in application.warnings)
    for name in report.others:
        yield f"application {name} is not specray's: not looked at"
    number = report.num_warnings
    yield f"{path}: no faults, {number} warning{'' if number == 1 else 's'}"


def _pool_lines(pools: tuple[Pool, ...]) -> Iterator[str]:
    width = max(len(pool.name) for pool in pools)
    yield f"  {'pool':{width}}  replicas  CPUs  GPUs  of type"
    for pool in pools:
        kind = (pool.accelerator_type or "any") if pool.gpus else ""
        replicas = _span(pool.min_replicas, pool.max_replicas)
        columns = f"{replicas:8}  {pool.cpus:<4g}  {pool.gpus:<4g}  {kind}"
        yield f"  {pool.name:{width}}  {columns}".rstrip()
    cpus = _total([(pool, pool.cpus) for pool in pools])
    gpus = _total([(pool, pool.gpus) for pool in pools])
    yield f"  {'in all':{width}}            {cpus} CPUs, {gpus} GPUs"


def _total(needs: list[tuple[Pool, float]]) -> str:
    least = sum(pool.min_replicas * need for pool, need in needs)
    most = sum(pool.max_replicas * need for pool, need in needs)
    return _span(least, most)


def _span(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def _target_lines(model_id: str, memory: TargetMemory | None) -> Iterator[str]:
    if memory is None:
        yield f"  target {model_id}: its size is not known from here"
        return
    ranks = f" on each of {memory.num_ranks}" if memory.num_ranks > 1 else ""
    yield f"  target {memory.model}: {_describe(memory.size)}"
    yield f"    weights   {_gib(memory.weight_bytes)}{ranks}"
    yield f"    working   {_gib(memory.working_bytes)} for activations and sampling, at least"
    per_token = f"{memory.kv_bytes_per_token / 1024:g} KiB a token{ranks}"
    yield f"    KV cache  {per_token}{_describe_windows(memory.size)}"
    for room in memory.rooms:
        requests = room.num_tokens / memory.max_model_len
        yield (
            f"    room      up to {max(0, room.num_tokens):,} tokens on {room.place}: "
            f"{max(0.0, requests):.1f} requests of {memory.max_model_len:,}"
        )
    if memory.is_on_gpu and not memory.rooms:
        needed = smallest_with(memory.least_bytes) or "none that is known here"
        yield f"    room      for one request of {memory.max_model_len:,}: {needed} or larger"


def _draft_lines(application: Application) -> Iterator[str]:
    memory = application.draft
    if application.draft_method is None:
        yield "  draft none: speculation.max_depth is 0"
    elif memory is not None:
        lengths = [target.max_model_len for target in application.targets.values() if target]
        yield from _model_draft_lines(memory, max(lengths, default=None))
    elif application.draft_model is not None:
        yield f"  draft {application.draft_model}: its size is not known from here"
    else:
        yield f"  draft {application.draft_method}"


def _model_draft_lines(memory: DraftMemory, longest: int | None) -> Iterator[str]:
    gpu = smallest_with(memory.total_bytes) or "no GPU that is known here"
    copy = ""
    if memory.copy_bytes:
        copy = f", a working copy of up to {_gib(memory.copy_bytes)}"
    elif memory.is_on_gpu:
        copy = " (twice that without Triton)"
    fits = f": has room on {gpu} or larger" if memory.is_on_gpu else ""
    yield f"  draft {memory.model}: {_describe(memory.size)}"
    yield f"    weights   {_gib(memory.weight_bytes)}"
    yield (
        f"    KV cache  {memory.kv_bytes_per_token / 1024:g} KiB a token: "
        f"{_gib(memory.pool_bytes)} for max_tokens{copy}, {_gib(memory.growth_bytes)} to move one "
        "that grows"
    )
    if longest is not None:
        requests = memory.num_tokens / longest
        yield f"    room      {memory.num_tokens:,} tokens: {requests:.1f} requests of {longest:,}"
    yield f"    in all    {_gib(memory.total_bytes)}{fits}"


def _describe(size: ModelSize) -> str:
    quantized = ""
    if size.num_quantized:
        share = size.num_quantized / size.num_parameters
        quantized = f", {share:.0%} of them in {size.quantized_bits:g} bits"
    active = ""
    if size.experts is not None:
        active = f", {size.num_active_parameters / 1e9:.3g} billion for each token"
    return f"{size.num_parameters / 1e9:.3g} billion parameters{quantized}{active} ({size.source})"


def _describe_windows(size: ModelSize) -> str:
    return "".join(
        f"; {layers.num_layers} of {size.num_layers} layers read the latest {layers.window:,} only"
        for layers in size.kv_layers
        if layers.window is not None
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
