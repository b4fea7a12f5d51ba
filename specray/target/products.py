"""Products on a CPU that come out the same for a token, whatever else is in the step.

In bfloat16 two tokens are often equally likely, or nearly so, and sums in another order decide
between them. With AMX tiles and one thread oneDNN adds up a row in one order for up to 32 rows. For
matrices of up to 1 MiB, such as the 576 x 576 behind SmolLM2-135M's attention, vLLM has other code,
whose order changes at five rows: a step that verifies four tokens would choose others than a plain
one.
"""

import torch
import vllm.model_executor.layers.utils as upstream


def install() -> None:
    """In a worker on a CPU, before its model is loaded."""
    upstream.check_cpu_sgl_kernel = _is_taken


def _is_taken(n: int, k: int, dtype: torch.dtype) -> bool:
    """Whether a matrix of n x k is multiplied by vLLM's other code."""
    return dtype != torch.bfloat16 and _upstream_check(n, k, dtype)


_upstream_check = upstream.check_cpu_sgl_kernel
