"""What a target and a draft take of a GPU's memory, as far as their configs tell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ray.serve.llm import LLMConfig

from specray.config import ModelDraftConfig
from specray.draft.sizes import CACHE_GROWTH
from specray.errors import InvalidConfigError
from specray.models.size import ModelSize, is_known_dtype, read_size
from specray.serve.gpus import memory_of
from specray.serve.pools import Pool
from specray.serve.settings import source_of

_GIB = 1 << 30
# vLLM's own defaults where the file is silent.
_UTILIZATION = 0.92
_BATCHED_TOKENS = 8192
_SEQUENCES = 256
_CPU_ROOM = "VLLM_CPU_KVCACHE_SPACE"
_SAMPLING_COPIES = 3  # float32 rows as wide as the vocabulary: logits, target's and draft's p


class Batch(NamedTuple):
    """The largest that an engine takes into one step."""

    num_sequences: int
    num_tokens: int
    max_depth: int


@dataclass(frozen=True, slots=True)
class KvRoom:
    """How many tokens' keys and values find room, in requests as long as may be.

    Negative if not even the weights do.
    """

    place: str  # the GPU's name and memory, or the setting that fixes the room
    num_tokens: int


class KvWindow(NamedTuple):
    """Layers that keep only the latest tokens of a request."""

    num_tokens: int  # their window, and as many as the largest step brings before others go
    bytes_per_token: int  # of those that a replica keeps


@dataclass(frozen=True, slots=True)
class TargetMemory:
    """One replica's needs. All bytes are those of one GPU (of one core's memory on a CPU)."""

    model: str
    size: ModelSize
    num_ranks: int
    weight_bytes: int
    kv_bytes_per_token: int  # within the windows of layers that have one
    working_bytes: int  # activations and sampling; CUDA's context and graphs come on top
    max_model_len: int
    is_on_gpu: bool
    rooms: tuple[KvRoom, ...]
    windows: tuple[KvWindow, ...] = ()

    @property
    def least_bytes(self) -> int:
        """With the KV cache of a single request of `max_model_len`, without which vLLM refuses."""
        return self.weight_bytes + self.working_bytes + self.request_bytes(self.max_model_len)

    def request_bytes(self, num_tokens: int) -> int:
        """Bytes of the keys and values of one request of so many tokens.

        Not counted is what vLLM pads where kinds of layers are not as many as each other.
        """
        left_out = sum(
            max(0, num_tokens - window.num_tokens) * window.bytes_per_token
            for window in self.windows
        )
        return self.kv_bytes_per_token * num_tokens - left_out

    def room_for(self, room: KvRoom, length: int) -> int:
        """How many tokens a room has for requests of another length than the longest."""
        longest = self.max_model_len
        num_bytes = room.num_tokens * self.request_bytes(longest) // longest
        return num_bytes * length // self.request_bytes(length)


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """One replica's needs."""

    model: str
    size: ModelSize
    weight_bytes: int
    kv_bytes_per_token: int
    num_tokens: int  # of all its requests together, `max_tokens`
    pool_bytes: int  # of these
    copy_bytes: int  # of the same, while all sessions are drafted for at once; 0: read in place
    growth_bytes: int  # of the longest, which is there twice while it is given more room
    is_on_gpu: bool

    @property
    def total_bytes(self) -> int:
        """What the GPU must have, less CUDA's context."""
        return self.weight_bytes + self.pool_bytes + self.copy_bytes + self.growth_bytes


def read_batch(options: Mapping[str, Any], max_depth: int) -> Batch:
    """The limits that vLLM's options set.

    Raises:
        InvalidConfigError: one is no number.
    """
    return Batch(
        _number(options, "max_num_seqs") or _SEQUENCES,
        _number(options, "max_num_batched_tokens") or _BATCHED_TOKENS,
        max_depth,
    )


def target_memory(target: LLMConfig, pool: Pool, max_depth: int) -> TargetMemory | None:
    """The memory of a target's GPUs; None if its model's size is not known.

    Raises:
        InvalidConfigError: a setting that it depends on is no number.
    """
    source, options = source_of(target), target.engine_kwargs
    memory = engine_memory(source, options, pool.accelerator_type, max_depth) if source else None
    if memory is None or pool.gpus > 0:
        return memory
    variables = (target.runtime_env or {}).get("env_vars") or {}
    rooms = memory.rooms
    if given := _number(variables, _CPU_ROOM, "runtime_env.env_vars"):
        longest = memory.max_model_len
        num_tokens = given * _GIB * longest // memory.request_bytes(longest)
        rooms = (KvRoom(f"{_CPU_ROOM} {given}", num_tokens),)
    return replace(memory, is_on_gpu=False, rooms=rooms)


def engine_memory(
    model: str, options: Mapping[str, Any], accelerator_type: str | None, max_depth: int
) -> TargetMemory | None:
    """The memory of an engine's GPUs, by vLLM's options; None if its model's size is not known.

    Raises:
        InvalidConfigError: an option that it depends on is no number.
    """
    size = read_size(model, options.get("quantization"))
    dtype, kv_dtype = str(options.get("dtype", "auto")), str(options.get("kv_cache_dtype", "auto"))
    if size is None or not (is_known_dtype(dtype) and is_known_dtype(kv_dtype)):
        return None
    if dtype == "auto" and size.dtype == "float32":
        dtype = "bfloat16"  # vLLM's choice
    degree = _number(options, "tensor_parallel_size") or 1
    kv_dtype = dtype if kv_dtype == "auto" else kv_dtype
    models = [size, *_drafters(options)]
    weights = sum(model.weight_bytes(dtype) for model in models) // degree
    per_token = sum(model.kv_bytes_per_token(kv_dtype, degree) for model in models)
    batch = read_batch(options, max_depth)
    working = _working_bytes(size, degree, batch)
    longest = _longest(options, size)
    memory = TargetMemory(
        model=model,
        size=size,
        num_ranks=degree,
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        working_bytes=working,
        max_model_len=longest,
        is_on_gpu=True,
        rooms=(),
        windows=tuple(_windows(models, options, kv_dtype, batch.num_tokens)),
    )
    longest_bytes = memory.request_bytes(longest)
    rooms = tuple(
        KvRoom(place, room * longest // longest_bytes)
        for place, room in _rooms(options, accelerator_type, weights + working)
    )
    return replace(memory, rooms=rooms)


def _windows(
    models: Sequence[ModelSize], options: Mapping[str, Any], dtype: str, num_in_step: int
) -> Iterator[KvWindow]:
    """Layers of which vLLM frees what is behind their window.

    Without its hybrid manager it does so only where all layers are of one kind; that is off by
    option, and with most connectors that hand keys and values on.
    """
    degree = _number(options, "tensor_parallel_size") or 1
    is_off = options.get("disable_hybrid_kv_cache_manager") or options.get("kv_transfer_config")
    if is_off and sum(len(model.kv_layers) for model in models) > 1:
        return
    for model in models:
        for layers in model.kv_layers:
            if layers.window is not None:
                num_kept = layers.window - 1 + num_in_step
                yield KvWindow(num_kept, model.kv_bytes(layers, dtype, degree))


def _drafters(options: Mapping[str, Any]) -> Iterator[ModelSize]:
    """The draft model in the engine, if there is one of known size; heads are not known here."""
    drafter = options.get("speculative_config") or {}
    is_model = drafter.get("method") == "draft_model" and isinstance(drafter.get("model"), str)
    size = read_size(drafter["model"]) if is_model else None
    if size is not None:
        yield size


def draft_memory(
    config: ModelDraftConfig, pool: Pool, longest: int | None = None
) -> DraftMemory | None:
    """The memory of a draft replica with a model; None if its model's size is not known.

    Counted is no copy that a GPU's draft makes only where Triton is missing or fails.

    Args:
        config: the draft's.
        pool: where it is placed.
        longest: tokens of its targets' longest requests; None: as many as the model's positions.
    """
    size = read_size(config.model)
    if size is None or not size.has_plain_attention or not is_known_dtype(config.dtype):
        return None
    is_on_gpu = config.device == "cuda" or (config.device == "auto" and pool.gpus > 0)
    dtype = config.dtype
    if dtype == "auto":
        dtype = "bfloat16" if is_on_gpu else "float32"
    per_token = size.kv_bytes_per_token(dtype)
    pool_bytes = per_token * config.max_tokens
    longest = min(longest or size.max_positions, size.max_positions)
    is_in_place = size.is_llama_like and (is_on_gpu or dtype == "float32")
    return DraftMemory(
        model=config.model,
        size=size,
        weight_bytes=size.weight_bytes(dtype),
        kv_bytes_per_token=per_token,
        num_tokens=config.max_tokens,
        pool_bytes=pool_bytes,
        copy_bytes=0 if is_in_place else pool_bytes,
        growth_bytes=min(int(per_token * longest * CACHE_GROWTH), pool_bytes),
        is_on_gpu=is_on_gpu,
    )


def _rooms(
    options: Mapping[str, Any], accelerator_type: str | None, taken: int
) -> Iterator[tuple[str, int]]:
    """Bytes that are left for the KV cache, for each GPU it may be."""
    totals = memory_of(accelerator_type)
    if given := _number(options, "kv_cache_memory_bytes"):
        left = max(totals) - taken if totals else given
        yield f"kv_cache_memory_bytes {given}", min(given, left)
        return
    share = _utilization(options)
    for total in totals:
        place = f"{accelerator_type} of {total / _GIB:.1f} GiB × {share:g}"
        yield place, int(total * share) - taken


def _longest(options: Mapping[str, Any], size: ModelSize) -> int:
    """Positions of a request; `auto` and -1 are what fits, up to the model's."""
    given = options.get("max_model_len")
    if given in (None, 0, -1, "auto"):
        return size.max_positions
    return _number(options, "max_model_len")


def _number(values: Mapping[str, Any], name: str, place: str = "engine_kwargs") -> int:
    """A setting that is a whole number, or as good as one; 0 if it is not there."""
    value = values.get(name)
    try:
        number = int(value or 0)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or (isinstance(value, float) and value != number):
        raise InvalidConfigError(f"{place}.{name}: must be a whole number, not {value!r}")
    return number


def _utilization(options: Mapping[str, Any]) -> float:
    """The share of a GPU that vLLM may fill; unlike other options it can't be null."""
    value = options.get("gpu_memory_utilization", _UTILIZATION)
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share <= 1:
        raise InvalidConfigError(
            "engine_kwargs.gpu_memory_utilization: must be a number above 0 and at most 1, not "
            f"{value!r}"
        )
    return share


def _working_bytes(size: ModelSize, num_ranks: int, batch: Batch) -> int:
    """The largest step's activations in one layer, and its rows as wide as the vocabulary."""
    rows = batch.num_sequences * (batch.max_depth + 1)
    # The residual stream and its norm; gate, up and their product, split over the ranks.
    activations = batch.num_tokens * (2 * size.hidden_size + 3 * size.ffn_size // num_ranks) * 2
    if size.experts is not None:  # a copy of each token for each of its experts, and what they make
        activations += batch.num_tokens * size.experts.per_token * 2 * size.hidden_size * 2
    return activations + rows * size.vocab_size * 4 * _SAMPLING_COPIES
