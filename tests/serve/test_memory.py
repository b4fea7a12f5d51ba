import json
from pathlib import Path
from typing import Any

import pytest
from ray.serve.llm import LLMConfig

from specray.config import ModelDraftConfig
from specray.errors import InvalidConfigError
from specray.serve.memory import DraftMemory, TargetMemory, draft_memory, target_memory
from specray.serve.pools import Pool

GIB = 1 << 30
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
NUM_PARAMETERS = 8_030_261_248
KV = 2 * 32 * 8 * 128 * 2  # K and V, layers, heads, dim, bytes


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specray.models.sources.try_to_load_from_cache", lambda *_: None)


def pool(gpus: float = 1.0, kind: str | None = "H100") -> Pool:
    return Pool("any", "target", 1, 1, 1.0, gpus, kind)


def target(engine_kwargs: dict[str, Any], model: str = MODEL, **changes: Any) -> LLMConfig:
    loading = {"model_id": "m", "model_source": model}
    return LLMConfig(model_loading_config=loading, engine_kwargs=engine_kwargs, **changes)


def measured(config: LLMConfig, where: Pool | None = None, max_depth: int = 5) -> TargetMemory:
    memory = target_memory(config, where or pool(), max_depth)
    assert memory is not None
    return memory


def test_a_model_on_one_gpu() -> None:
    memory = measured(target({"max_model_len": 4096}))

    assert memory.weight_bytes == 2 * NUM_PARAMETERS
    assert memory.kv_bytes_per_token == KV
    assert memory.least_bytes == memory.weight_bytes + memory.working_bytes + 4096 * KV


def test_ranks_share_the_weights_and_the_cache() -> None:
    memory = measured(target({"tensor_parallel_size": 4}))

    assert memory.num_ranks == 4
    assert memory.weight_bytes == 2 * NUM_PARAMETERS // 4
    assert memory.kv_bytes_per_token == KV // 4


@pytest.fixture
def windowed(tmp_path: Path) -> str:
    """Half of its 36 layers read 128 tokens."""
    config = {"model_type": "gpt_oss", "dtype": "bfloat16", "sliding_window": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


HALF = 18 * 2 * 8 * 64 * 2  # layers, K and V, heads, dim, bytes


def test_layers_with_a_window_keep_it_and_what_the_largest_step_brings(windowed: str) -> None:
    options = {"max_model_len": 100_000, "max_num_batched_tokens": 1000}
    memory = measured(target(options, windowed))

    assert memory.kv_bytes_per_token == 2 * HALF
    assert memory.request_bytes(100_000) == HALF * 100_000 + HALF * (127 + 1000)
    assert memory.request_bytes(500) == 2 * HALF * 500
    taken = memory.least_bytes - memory.weight_bytes - memory.working_bytes
    assert taken == memory.request_bytes(100_000)


@pytest.mark.parametrize(
    "option",
    [{"disable_hybrid_kv_cache_manager": True}, {"kv_transfer_config": {"kv_connector": "any"}}],
)
def test_without_vllm_s_hybrid_manager_all_layers_keep_all_tokens(
    windowed: str, option: dict[str, Any]
) -> None:
    memory = measured(target({"max_model_len": 100_000} | option, windowed))

    assert memory.request_bytes(100_000) == 2 * HALF * 100_000


def test_layers_that_are_all_of_one_kind_need_no_such_manager(tmp_path: Path) -> None:
    config = {"model_type": "mistral", "dtype": "bfloat16", "sliding_window": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = {"max_num_batched_tokens": 1000, "disable_hybrid_kv_cache_manager": True}
    memory = measured(target(options, str(tmp_path)))

    assert memory.request_bytes(100_000) == (4095 + 1000) * memory.kv_bytes_per_token


def test_a_draft_that_would_be_refused_has_no_size(windowed: str) -> None:
    assert draft_memory(ModelDraftConfig(model=windowed), pool()) is None


def test_the_room_is_one_for_requests_as_long_as_may_be(windowed: str) -> None:
    options = {"max_model_len": 100_000, "kv_cache_memory_bytes": GIB}
    memory = measured(target(options, windowed), pool(kind=None))

    (room,) = memory.rooms
    held = GIB / memory.request_bytes(100_000)
    assert room.num_tokens / 100_000 == pytest.approx(held, rel=1e-4)
    assert memory.room_for(room, 100_000) == pytest.approx(room.num_tokens, rel=1e-4)
    assert memory.room_for(room, 500) == pytest.approx(GIB / (2 * HALF), rel=1e-4)


def test_the_model_of_vllms_own_drafter_counts_too() -> None:
    drafter = {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct"}
    alone = measured(target({}))
    both = measured(target({"speculative_config": drafter}))
    head = measured(target({"speculative_config": drafter | {"method": "eagle3"}}))

    assert both.weight_bytes - alone.weight_bytes == pytest.approx(2 * 1.236e9, rel=0.001)
    assert both.kv_bytes_per_token - alone.kv_bytes_per_token == 2 * 16 * 8 * 64 * 2
    assert head == alone  # it has layers that its config does not tell of


def test_what_is_left_under_the_utilization_is_for_tokens() -> None:
    memory = measured(target({"gpu_memory_utilization": 0.5}))

    (room,) = memory.rooms
    left = 0.5 * 81_559 * 2**20 - memory.weight_bytes - memory.working_bytes
    assert room.num_tokens == left // KV
    assert room.place == "H100 of 79.6 GiB × 0.5"


def test_each_size_of_a_gpu_is_told() -> None:
    small, large = measured(target({}), pool(kind="A100")).rooms

    assert large.num_tokens > small.num_tokens


def test_a_gpu_that_is_too_small_has_less_than_no_room() -> None:
    memory = measured(target({}, "meta-llama/Llama-3.3-70B-Instruct"), pool(kind="L4"))

    assert memory.rooms[0].num_tokens < 0


def test_an_unknown_gpu_has_no_room_that_could_be_told() -> None:
    assert measured(target({}), pool(kind=None)).rooms == ()


def test_a_fixed_cache_is_what_it_is() -> None:
    memory = measured(target({"kv_cache_memory_bytes": 1000 * KV + 1}), pool(kind=None))

    assert [room.num_tokens for room in memory.rooms] == [1000]


def test_a_fixed_cache_leaves_the_weights_their_room() -> None:
    memory = measured(target({"kv_cache_memory_bytes": 20 * GIB}), pool(kind="L4"))

    left = 23_034 * 2**20 - memory.weight_bytes - memory.working_bytes
    assert [room.num_tokens for room in memory.rooms] == [left // KV]


def test_on_the_cpu_vllm_s_variable_counts() -> None:
    config = target(
        {"dtype": "float32"},
        accelerator_config={"kind": "cpu"},
        runtime_env={"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "3"}},
    )
    memory = measured(config, pool(0.0, None))

    assert not memory.is_on_gpu
    assert [room.num_tokens for room in memory.rooms] == [3 * GIB // (2 * KV)]


def test_a_cache_in_fp8_takes_half() -> None:
    assert measured(target({"kv_cache_dtype": "fp8"})).kv_bytes_per_token == KV // 2


def test_quantising_while_loading_halves_the_linear_layers() -> None:
    memory = measured(target({"quantization": "fp8"}))

    embeddings = 2 * 128_256 * 4096
    assert memory.weight_bytes == pytest.approx(NUM_PARAMETERS + embeddings, rel=1e-3)


def test_depth_costs_rows_as_wide_as_the_vocabulary() -> None:
    config = target({"max_num_seqs": 10})
    shallow, deep = (measured(config, max_depth=depth).working_bytes for depth in (0, 5))

    assert deep - shallow == 5 * 10 * 128_256 * 4 * 3


def test_a_checkpoint_in_float32_is_served_in_bfloat16() -> None:
    memory = measured(target({}, "bundled:smollm2-135m-instruct"))

    assert memory.weight_bytes == 2 * 134_515_008


@pytest.mark.parametrize("value", ["many", 1.5, float("inf"), [4]])
def test_what_is_no_whole_number_is_named(value: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"engine_kwargs\.max_num_seqs: must be a whole"):
        target_memory(target({"max_num_seqs": value}), pool(), 5)


@pytest.mark.parametrize("value", ["90%", None, [0.9], 0, 90, float("nan")])
def test_a_utilization_that_is_no_share_is_named(value: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"engine_kwargs\.gpu_memory_utilization: must be"):
        target_memory(target({"gpu_memory_utilization": value}), pool(), 5)


@pytest.mark.parametrize("longest", [-1, "auto", None])
def test_the_longest_request_may_be_left_to_vllm(longest: Any) -> None:
    assert measured(target({"max_model_len": longest})).max_model_len == 131072


def test_variables_that_are_left_empty_say_nothing_of_a_cpus_room() -> None:
    config = target({}, accelerator_config={"kind": "cpu"}, runtime_env={"env_vars": None})

    assert not measured(config, pool(0.0, None)).rooms


@pytest.mark.parametrize(
    ("model", "options"),
    [("s3://bucket/model", {}), (MODEL, {"kv_cache_dtype": "turbo"}), (MODEL, {"dtype": "odd"})],
)
def test_what_can_not_be_known_is_not_told(model: str, options: dict[str, Any]) -> None:
    assert target_memory(target(options, model), pool(), 5) is None


def drafted(where: Pool, **changes: Any) -> DraftMemory:
    config = ModelDraftConfig(**{"model": MODEL, "max_tokens": 1000} | changes)
    memory = draft_memory(config, where, longest=400)
    assert memory is not None
    return memory


def test_a_draft_reads_its_pool_where_it_lies() -> None:
    for memory in (drafted(pool()), drafted(pool(), dtype="float16")):
        assert (memory.pool_bytes, memory.copy_bytes) == (1000 * KV, 0)
        assert (
            memory.total_bytes == 2 * NUM_PARAMETERS + 1500 * KV
        )  # of them 500 for one that grows
    assert drafted(pool(0.0)).copy_bytes == 0


def test_one_that_transformers_computes_makes_a_working_copy() -> None:
    memory = drafted(pool(), model="facebook/opt-125m")
    on_a_cpu = drafted(pool(0.0), dtype="bfloat16")

    assert memory.copy_bytes == memory.pool_bytes == 1000 * memory.kv_bytes_per_token
    assert memory.total_bytes == memory.weight_bytes + 2500 * memory.kv_bytes_per_token
    assert on_a_cpu.copy_bytes == on_a_cpu.pool_bytes


@pytest.mark.parametrize("longest", [None, 100_000])
def test_no_request_that_grows_takes_more_than_the_pool(longest: int | None) -> None:
    memory = draft_memory(ModelDraftConfig(model=MODEL, max_tokens=1000), pool(), longest)

    assert memory is not None
    assert memory.growth_bytes == memory.pool_bytes


def test_a_draft_without_a_gpu_is_in_float32() -> None:
    assert drafted(pool(0.0)).weight_bytes == 4 * NUM_PARAMETERS
    assert drafted(pool(0.0), dtype="float16").weight_bytes == 2 * NUM_PARAMETERS
    assert drafted(pool(1.0), device="cpu").weight_bytes == 4 * NUM_PARAMETERS


def test_an_unknown_draft_is_not_told() -> None:
    assert draft_memory(ModelDraftConfig(model="bundled:nothing"), pool()) is None
