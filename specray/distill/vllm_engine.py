"""Generation with vLLM."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.platforms import current_platform

from specray.distill.generation import Completion, SampleRequest
from specray.errors import InvalidConfigError

_MAX_SEED = 1 << 31
_AT_ONCE = 2048  # in one call: vLLM takes as many of them at a time as it has memory for


class VllmGenerator:
    """Continues prompts in vLLM's batches."""

    def __init__(self, model: str, end_ids: frozenset[int], max_top_k: int, dtype: str) -> None:
        """Starts vLLM.

        Raises:
            InvalidConfigError: it did not start.
        """
        self._end_ids = sorted(end_ids)
        self.num_at_once = _AT_ONCE
        try:
            # Compiling pays on a GPU only: elsewhere it takes longer than it saves.
            self._llm = LLM(
                model,
                dtype=dtype,
                enforce_eager=not current_platform.is_cuda_alike(),
                max_logprobs=max_top_k,
                disable_log_stats=True,
            )
        except (OSError, RuntimeError, ValueError) as error:  # its process's end is a RuntimeError
            raise InvalidConfigError(
                f"target {model}: vLLM, whose messages are above, did not start; if memory ended, "
                "name a smaller target, use a larger device or, as it needs room for the whole "
                f"context, --engine transformers: {error}"
            ) from error

    def generate(self, requests: Sequence[SampleRequest], top_k: int) -> list[Completion]:
        """See `Generator`."""
        outputs = self._llm.generate(
            [TokensPrompt(prompt_token_ids=list(request.prompt)) for request in requests],
            [self._params(request, top_k) for request in requests],
            use_tqdm=False,
        )
        return [_completion(output.outputs[0], top_k) for output in outputs]

    def _params(self, request: SampleRequest, top_k: int) -> Any:
        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed % _MAX_SEED,
            max_tokens=request.max_tokens,
            stop_token_ids=self._end_ids,
            logprobs=top_k or None,
            flat_logprobs=bool(top_k),
            detokenize=False,
        )


def _completion(output: Any, top_k: int) -> Completion:
    tokens = np.array(output.token_ids, np.int32)
    ids = np.zeros((len(tokens), top_k), np.int32)
    logprobs = np.zeros((len(tokens), top_k), np.float16)
    if top_k:
        flat = output.logprobs
        for index, start in enumerate(flat.start_indices):
            # The token that was drawn comes first, then the most likely ones.
            ids[index] = flat.token_ids[start + 1 : start + 1 + top_k]
            logprobs[index] = flat.logprobs[start + 1 : start + 1 + top_k]
    return Completion(tokens, ids, logprobs)
