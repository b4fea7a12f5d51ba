from dataclasses import replace
from typing import Any

import pytest
from ray.serve.llm import LLMConfig

from specray.config import ModelDraftConfig
from specray.models.experts import Experts
from specray.models.size import read_size
from specray.serve.advice import Draft, Target, advise
from specray.serve.memory import DraftMemory, KvRoom, TargetMemory
from specray.serve.pools import Pool
from specray.serve.settings import validate

GIB = 1 << 30


@pytest.fixture
def args() -> dict[str, Any]:
    return {"target": {"model_loading_config": {"model_id": "m"}, "engine_kwargs": {}}}


@pytest.fixture
def target(args: dict[str, Any]) -> Target:
    size = read_size("meta-llama/Llama-3.1-8B-Instruct")
    assert size is not None
    config = LLMConfig(**args["target"] | {"engine_kwargs": {"max_num_seqs": 32}})
    memory = TargetMemory("m", size, 1, 1, 1, 1, 4096, True, (KvRoom("H100", 100_000),))
    return Target("target", config, Pool("target:m", "target", 1, 2, 1, 1, "H100"), memory)


@pytest.fixture
def draft() -> Draft:
    size = read_size("meta-llama/Llama-3.2-1B-Instruct")
    assert size is not None
    memory = DraftMemory("d", size, 2 * GIB, 1, 65536, 4 * GIB, 4 * GIB, 0, True)
    config = ModelDraftConfig(model="d", max_sessions=64, max_tokens=65536)
    return Draft(config, Pool("draft", "draft", 1, 1, 1, 1, "L4"), memory)


def advised(
    args: dict[str, Any],
    target: Target,
    draft: Draft | None,
    user_config: dict[str, Any] | None = None,
    is_on_one_node: bool = False,
) -> tuple[str, ...]:
    return advise(validate(args), (target,), draft, user_config or {}, is_on_one_node)


def option(target: Target, **options: Any) -> Target:
    given = {"model_loading_config": {"model_id": "m"}}
    return replace(target, config=LLMConfig(**given, engine_kwargs=options))


def with_memory(target: Target, **changes: Any) -> Target:
    assert target.memory is not None
    return replace(target, memory=replace(target.memory, **changes))


def the_only(warnings: tuple[str, ...]) -> str:
    (warning,) = warnings
    return warning


def test_a_sound_pair_needs_no_advice(args: dict[str, Any], target: Target, draft: Draft) -> None:
    assert advised(args, target, draft) == ()
    assert advised(args, target, None) == ()


@pytest.mark.parametrize(
    ("speculation", "user_config", "start"),
    [
        ({"max_depth": 0}, {}, "speculation.max_depth: 0 serves without"),
        ({"max_depth": 3}, {"max_depth": 4}, "deployments.controller.user_config.max_depth: 4 is"),
        ({"listen_host": "127.0.0.1"}, {}, "speculation.listen_host: 127.0.0.1 can't be reached"),
        ({"listen_host": "localhost"}, {}, "speculation.listen_host: localhost can't be reached"),
        ({"listen_host": "10.0.0.7"}, {}, "speculation.listen_host: 10.0.0.7 is one node's"),
    ],
)
def test_about_speculation(
    args: dict[str, Any],
    target: Target,
    speculation: dict[str, Any],
    user_config: dict[str, Any],
    start: str,
) -> None:
    args["speculation"] = speculation

    assert the_only(advised(args, target, None, user_config)).startswith(start)


def test_on_one_node_loopback_is_fine(args: dict[str, Any], target: Target) -> None:
    args["speculation"] = {"listen_host": "127.0.0.1"}

    assert advised(args, target, None, is_on_one_node=True) == ()


def test_weights_of_names_that_no_tenant_has(args: dict[str, Any], target: Target) -> None:
    args["draft"] = {"weights": {"": 2, "0123456789ab": 2, "team-a": 2}}
    assert the_only(advised(args, target, None)).startswith("draft.weights.team-a: tenants are")

    args["router"] = {"tenant_header": "x-team"}
    assert advised(args, target, None) == ()


def test_a_router_that_is_both_fixed_and_scaled(args: dict[str, Any], target: Target) -> None:
    args["router"] = {
        "deployment_config": {"num_replicas": 2, "autoscaling_config": {"min_replicas": 1}}
    }

    assert "autoscaling_config ignored" in the_only(advised(args, target, None))


def test_prefix_caching_that_is_switched_off(args: dict[str, Any], target: Target) -> None:
    warning = the_only(advised(args, option(target, enable_prefix_caching=False), None))

    assert warning.startswith("target.engine_kwargs.enable_prefix_caching: off")


def test_keys_and_values_that_come_from_elsewhere(args: dict[str, Any], target: Target) -> None:
    connector = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    warning = the_only(advised(args, option(target, kv_transfer_config=connector), None))

    assert warning.startswith("target.engine_kwargs.kv_transfer_config: ")


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_checkpoint_of_a_method_that_vllm_gives_up(
    args: dict[str, Any], target: Target, is_allowed: bool
) -> None:
    size = read_size("meta-llama/Llama-3.1-405B-Instruct-FP8")
    target = with_memory(option(target, allow_deprecated_quantization=is_allowed), size=size)

    warnings = advised(args, target, None)
    start = "target.engine_kwargs.allow_deprecated_quantization: unless it is true"
    assert [warning.startswith(start) for warning in warnings] == [True] * (not is_allowed)


def test_too_few_requests_for_the_batch(args: dict[str, Any], target: Target) -> None:
    target.config.deployment_config["max_ongoing_requests"] = 31

    warning = the_only(advised(args, target, None))
    assert warning.startswith("target.deployment_config.max_ongoing_requests: 31 requests never")


def test_more_than_the_model_s_positions(args: dict[str, Any], target: Target) -> None:
    long = with_memory(target, max_model_len=131_073, rooms=())

    assert "131073 is more than the model's 131072" in the_only(advised(args, long, None))


@pytest.mark.parametrize(
    ("num_tokens", "words"), [(4095, "4,095 tokens"), (-1, "not even its weights")]
)
def test_no_room_for_one_request(
    args: dict[str, Any], target: Target, num_tokens: int, words: str
) -> None:
    full = with_memory(target, rooms=(KvRoom("L4 of 22.5 GiB × 0.9", num_tokens),))

    warning = the_only(advised(args, full, None))
    assert f"on L4 of 22.5 GiB × 0.9 there is room for {words}" in warning


def test_a_draft_that_is_not_small(args: dict[str, Any], target: Target, draft: Draft) -> None:
    assert draft.memory is not None
    large = replace(draft.memory.size, num_parameters=2_000_000_000)
    slow = replace(draft, memory=replace(draft.memory, size=large))

    warning = the_only(advised(args, target, slow))
    assert warning.startswith("draft.model.model: it has 25% of the parameters of m")


@pytest.mark.parametrize(
    ("num_parameters", "is_too_large"), [(99_000_000, False), (100_000_000, True)]
)
def test_a_small_target_s_draft_is_at_least_smaller(
    args: dict[str, Any], target: Target, draft: Draft, num_parameters: int, is_too_large: bool
) -> None:
    assert target.memory is not None
    assert draft.memory is not None
    small = with_memory(target, size=replace(target.memory.size, num_parameters=100_000_000))
    size = replace(draft.memory.size, num_parameters=num_parameters)
    warnings = advised(args, small, replace(draft, memory=replace(draft.memory, size=size)))

    start = "draft.model.model: it has 100% of the parameters of m"
    assert [warning.startswith(start) for warning in warnings] == [True] * is_too_large


def test_a_draft_is_held_against_the_experts_of_a_token(
    args: dict[str, Any], target: Target, draft: Draft
) -> None:
    assert target.memory is not None
    experts = Experts(16, 1, 8_000_000_000, 0)
    mixture = replace(target.memory.size, num_parameters=12_000_000_000, experts=experts)

    warning = the_only(advised(args, with_memory(target, size=mixture), draft))
    assert warning.startswith("draft.model.model: it has 27% of the active parameters of m")


def test_a_draft_of_fewer_positions(args: dict[str, Any], target: Target, draft: Draft) -> None:
    assert draft.memory is not None
    size = replace(draft.memory.size, max_positions=2048)
    short = replace(draft, memory=replace(draft.memory, size=size))

    warning = the_only(advised(args, target, short))
    assert warning.startswith("draft.model.model: has 2,048 positions; requests of m beyond that")


def test_a_cache_smaller_than_one_request(
    args: dict[str, Any], target: Target, draft: Draft
) -> None:
    config = draft.config.model_copy(update={"max_tokens": 4000})

    warning = the_only(advised(args, target, replace(draft, config=config)))
    assert warning.startswith("draft.model.max_tokens: has 4,000 tokens of KV cache; requests of m")


def test_fewer_sessions_than_requests(args: dict[str, Any], target: Target, draft: Draft) -> None:
    config = draft.config.model_copy(update={"max_sessions": 63})  # for 2 × 32 requests

    warning = the_only(advised(args, target, replace(draft, config=config)))
    assert warning.startswith("draft.model.max_sessions: 1 × 63 sessions for up to 64 requests")


def test_requests_in_a_targets_queue_take_sessions_too(
    args: dict[str, Any], target: Target, draft: Draft
) -> None:
    config = draft.config.model_copy(update={"max_sessions": 64})
    taken = {**target.config.deployment_config, "max_ongoing_requests": 40}
    queued = replace(target, config=target.config.model_copy(update={"deployment_config": taken}))

    warning = the_only(advised(args, queued, replace(draft, config=config)))
    assert warning.startswith("draft.model.max_sessions: 1 × 64 sessions for up to 80 requests")


def test_sessions_are_not_counted_against_a_batch_that_vllm_chooses(
    args: dict[str, Any], target: Target, draft: Draft
) -> None:
    config = draft.config.model_copy(update={"max_sessions": 1})

    assert advised(args, option(target), replace(draft, config=config)) == ()


def test_a_draft_on_a_gpu_that_it_does_not_ask_for(
    args: dict[str, Any], target: Target, draft: Draft
) -> None:
    config = draft.config.model_copy(update={"device": "cuda"})
    hidden = replace(draft, config=config, pool=replace(draft.pool, gpus=0.0))

    warning = the_only(advised(args, target, hidden))
    assert warning.startswith("draft.deployment_config.ray_actor_options.num_gpus: 0, but")


def test_gpus_that_a_draft_leaves_idle(args: dict[str, Any], target: Target, draft: Draft) -> None:
    greedy = replace(draft, pool=replace(draft.pool, gpus=2.0))

    warning = the_only(advised(args, target, greedy))
    assert warning.startswith("draft.deployment_config.ray_actor_options.num_gpus: 2, but")


def test_a_draft_that_is_larger_than_its_share(
    args: dict[str, Any], target: Target, draft: Draft
) -> None:
    shared = replace(draft, pool=replace(draft.pool, gpus=0.25))

    warning = the_only(advised(args, target, shared))
    assert "take 10.0 GiB, its share of a L4 is 5.6 GiB; lower max_tokens" in warning


def test_what_is_not_known_is_not_judged(
    args: dict[str, Any], target: Target, draft: Draft
) -> None:
    assert advised(args, replace(target, memory=None), replace(draft, memory=None)) == ()
