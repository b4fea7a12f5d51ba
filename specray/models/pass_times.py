"""How long a target's passes take for one request, with plain transformers."""

import time
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

_REPEATS = 2  # behind each of several prompts


@torch.inference_mode()
def pass_times(model: Any, prompt_ids: Tensor, next_ids: Tensor) -> list[float]:
    """Seconds of a pass over the first one, two, ... of the next tokens, behind a cached prompt.

    The fastest of a few, each: what the machine does besides only adds.

    Args:
        model: a causal LM.
        prompt_ids: of one request, [1, prompt].
        next_ids: what it goes on with, [1, most]; real ones, as a mixture's experts follow them.
    """
    cache = model(prompt_ids, use_cache=True, logits_to_keep=1).past_key_values
    counts = range(1, next_ids.shape[1] + 1)
    rounds = [  # of all lengths in turn, so that a slow moment does not hit one alone
        # Copies, as not every kind of cache can be cropped: recurrent states can't.
        [_pass_s(model, next_ids[:, :count], deepcopy(cache)) for count in counts]
        for _ in range(_REPEATS)
    ]
    return [min(seconds) for seconds in zip(*rounds, strict=True)]


def _pass_s(model: Any, token_ids: Tensor, cache: Any) -> float:
    if token_ids.is_cuda:
        torch.cuda.synchronize(token_ids.device)  # the copying of the cache does not count
    started_s = time.perf_counter()
    logits = model(token_ids, past_key_values=cache, use_cache=True).logits  # [1, tokens, vocab]
    logits.argmax(dim=2).tolist()  # a step ends when its tokens are known, which is waited for here
    return time.perf_counter() - started_s
