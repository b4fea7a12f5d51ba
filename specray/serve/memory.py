"""What a target and a draft take of a GPU's memory, as far as their configs tell."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ray.serve.llm import LLMConfig

from specray.config import ModelDraftConfig
from specray.models import ModelSize, is_known_dtype, read_size
from specray.serve.gpus import memory_of
from specray.serve.pools import Pool
from specray.serve.settings import degree_of, source_of

_GIB = 1 << 30
# vLLM's own defaults where the file is silent.
_UTILIZATION = 0.92
BATCHED_TOKENS = 8192
SEQUENCES = 256
_SAMPLING_COPIES = 3  # float32 rows as wide as the vocabulary: logits, target's and draft's p


class Batch(NamedTuple):
    """The largest that an engine takes into one step."""

    num_sequences: int
    num_tokens: int
    max_depth: int


@dataclass(frozen=True, slots=True)
class KvRoom:
    """How many tokens' keys and values find room; negative if not even the weights do."""

    place: str  # the GPU's name and memory, or the setting that fixes the room
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TargetMemory:
    """One replica's needs. All bytes are those of one GPU (of one core's memory on a CPU)."""

    model: str
    size: ModelSize
    num_ranks: int
    weight_bytes: int
    kv_bytes_per_token: int
    working_bytes: int  # activations and sampling; CUDA's context and graphs come on top
    max_model_len: int
    is_on_gpu: bool
    rooms: tuple[KvRoom, ...]

    @property
    def least_bytes(self) -> int:
        """With the KV cache of a single request of `max_model_len`, without which vLLM refuses."""
        one_request = self.kv_bytes_per_token * self.max_model_len
        return self.weight_bytes + self.working_bytes + one_request


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """One replica's needs."""

    model: str
    size: ModelSize
    weight_bytes: int
    kv_bytes_per_token: int
    num_tokens: int  # of all its requests together, `max_tokens`
    pool_bytes: int  # of these
    copy_bytes: int  # of the same, while all sessions are drafted for at once
    is_on_gpu: bool

    @property
    def total_bytes(self) -> int:
        """What the GPU must have, less CUDA's context."""
        return self.weight_bytes + self.pool_bytes + self.copy_bytes


def target_memory(target: LLMConfig, pool: Pool, max_depth: int) -> TargetMemory | None:
    """The memory of a target's GPUs; None if its model's size is not known."""
    source = source_of(target)
    options = target.engine_kwargs
    size = read_size(source, options.get("quantization")) if source else None
    dtype, kv_dtype = str(options.get("dtype", "auto")), str(options.get("kv_cache_dtype", "auto"))
    if size is None or not (is_known_dtype(dtype) and is_known_dtype(kv_dtype)):
        return None
    if dtype == "auto" and size.dtype == "float32":
        dtype = "bfloat16"  # vLLM's choice
    degree = degree_of(target)
    kv_dtype = dtype if kv_dtype == "auto" else kv_dtype
    weights = size.weight_bytes(dtype) // degree
    per_token = size.kv_bytes_per_token(kv_dtype, degree)
    batch = Batch(
        int(options.get("max_num_seqs") or SEQUENCES),
        int(options.get("max_num_batched_tokens") or BATCHED_TOKENS),
        max_depth,
    )
    working = _working_bytes(size, degree, batch)
    return TargetMemory(
        model=str(source),
        size=size,
        num_ranks=degree,
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        working_bytes=working,
        max_model_len=int(options.get("max_model_len") or size.max_positions),
        is_on_gpu=pool.gpus > 0,
        rooms=tuple(
            KvRoom(place, room // per_token)
            for place, room in _rooms(target, pool, weights + working)
        ),
    )


def draft_memory(config: ModelDraftConfig, pool: Pool) -> DraftMemory | None:
    """The memory of a draft replica with a model; None if its model's size is not known."""
    size = read_size(config.model)
    if size is None or not is_known_dtype(config.dtype):
        return None
    is_on_gpu = config.device == "cuda" or (config.device == "auto" and pool.gpus > 0)
    dtype = config.dtype
    if dtype == "auto":
        dtype = "bfloat16" if is_on_gpu else "float32"
    per_token = size.kv_bytes_per_token(dtype)
    return DraftMemory(
        model=config.model,
        size=size,
        weight_bytes=size.weight_bytes(dtype),
        kv_bytes_per_token=per_token,
        num_tokens=config.max_tokens,
        pool_bytes=per_token * config.max_tokens,
        copy_bytes=per_token * config.max_tokens,
        is_on_gpu=is_on_gpu,
    )


def kv_room(size: ModelSize, num_ranks: int, accelerator_type: str, batch: Batch) -> int | None:
    """Tokens whose keys and values find room beside the weights, by vLLM's default utilization.

    Returns:
        That of the larger where there are GPUs of several sizes under the name; None if their
        memory is not known; negative if not even the weights find room.
    """
    totals = memory_of(accelerator_type)
    if not totals:
        return None
    taken = size.weight_bytes() // num_ranks + _working_bytes(size, num_ranks, batch)
    free_bytes = int(max(totals) * _UTILIZATION) - taken
    return free_bytes // size.kv_bytes_per_token(num_ranks=num_ranks)


def _rooms(target: LLMConfig, pool: Pool, taken: int) -> Iterator[tuple[str, int]]:
    """Bytes that are left for the KV cache, for each GPU it may be."""
    options = target.engine_kwargs
    variables = (target.runtime_env or {}).get("env_vars", {})
    if pool.gpus == 0 and variables.get("VLLM_CPU_KVCACHE_SPACE"):
        given = variables["VLLM_CPU_KVCACHE_SPACE"]
        yield f"VLLM_CPU_KVCACHE_SPACE {given}", int(given) * _GIB
    elif options.get("kv_cache_memory_bytes"):
        given = int(options["kv_cache_memory_bytes"])
        yield f"kv_cache_memory_bytes {given}", given
    else:
        share = float(options.get("gpu_memory_utilization", _UTILIZATION))
        for total in memory_of(pool.accelerator_type):
            place = f"{pool.accelerator_type} of {total / _GIB:.1f} GiB × {share:g}"
            yield place, int(total * share) - taken


def _working_bytes(size: ModelSize, num_ranks: int, batch: Batch) -> int:
    """The largest step's activations in one layer, and its rows as wide as the vocabulary."""
    rows = batch.num_sequences * (batch.max_depth + 1)
    # The residual stream and its norm; gate, up and their product, split over the ranks.
    activations = batch.num_tokens * (2 * size.hidden_size + 3 * size.ffn_size // num_ranks) * 2
    return activations + rows * size.vocab_size * 4 * _SAMPLING_COPIES
