"""Products on a CPU that come out the same for a token, whatever else is in the step.

In bfloat16 two tokens are often equally likely, and a sum in another order decides between them. On
CPUs with AMX tiles oneDNN adds up a row in one order for up to 32 rows. For small matrices, such
as those that bring 576 values of attention together, vLLM takes other code, which does so only up
to 4 rows: a step that verifies five tokens of a request would choose others than a plain one.
"""

import torch
import vllm.model_executor.layers.utils as upstream


def install() -> None:
    """In a worker on a CPU, before its model is loaded."""
    upstream.check_cpu_sgl_kernel = _is_taken


def _is_taken(n: int, k: int, dtype: torch.dtype) -> bool:
    """Whether a matrix of n x k is multiplied by vLLM's other code: if it is quantised only."""
    return dtype == torch.int8 and _upstream_check(n, k, dtype)


_upstream_check = upstream.check_cpu_sgl_kernel
