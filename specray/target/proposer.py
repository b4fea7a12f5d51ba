"""The proposer that vLLM sees: none. Its presence makes vLLM build its rejection sampler."""

from typing import Any

from vllm.config import VllmConfig


class NoProposer:
    """Proposes nothing; proposals come from the scheduler. vLLM's `custom_class` interface."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        del vllm_config

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Called after the target's weights are loaded."""

    def propose(
        self, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> list[list[int]]:
        """An empty proposal for each request of the step."""
        return [[] for _ in sampled_token_ids]
