"""What Ray Serve LLM's engine is told; whole engines run in the services' tests."""

import asyncio
from typing import Any

import pytest
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.serve.llm import LLMConfig

from specray.serve.target_engine import TargetEngine


class OwnCallback(CallbackBase):
    """Somebody's."""


@pytest.mark.parametrize(
    ("loading", "others", "is_fetched"),
    [
        ({"model_id": "m", "model_source": "/models/m"}, {}, False),
        ({"model_id": "m", "model_source": "meta-llama/Llama-3.3-70B-Instruct"}, {}, False),
        ({"model_id": "meta-llama/Llama-3.3-70B-Instruct"}, {}, False),
        ({"model_id": "m", "model_source": "s3://bucket/m"}, {}, True),
        ({"model_id": "m", "model_source": {"bucket_uri": "gs://bucket/m"}}, {}, True),
        (
            {"model_id": "m", "model_source": "/models/m"},
            {"callback_config": {"callback_class": OwnCallback}},
            True,
        ),
    ],
)
def test_nodes_are_visited_only_where_ray_has_something_to_do_there(
    monkeypatch: pytest.MonkeyPatch,
    loading: dict[str, Any],
    others: dict[str, Any],
    is_fetched: bool,
) -> None:
    config = LLMConfig(model_loading_config=loading, **others)
    config._callback_instance = CallbackBase(config)  # one is made with a placement group in Ray
    started = []

    async def start(engine: VLLMEngine) -> None:
        started.append(engine.llm_config.get_or_create_callback().ctx.run_init_node)

    monkeypatch.setattr(VLLMEngine, "start", start)
    engine = TargetEngine.__new__(TargetEngine)
    engine.llm_config = config

    asyncio.run(engine.start())

    assert started == [is_fetched]
