"""Whether a draft's own kernels run on a device."""

import logging
from importlib.util import find_spec

import torch

logger = logging.getLogger(__name__)


def has_kernels(
    device: torch.device, dtype: torch.dtype, num_heads: int, kv_heads: int, dim: int
) -> bool:
    """Whether there is Triton for a device, and it compiles what attends; the log says if not.

    Triton also needs a C compiler, and more of a processor's memory the larger heads and their type
    are. A draft without it computes the same in more operations, copies keys and values, and
    records no CUDA graphs. No request has to wait for what is compiled here.

    Args:
        device: the draft's.
        dtype: of its keys and values.
        num_heads: its attention heads.
        kv_heads: of keys and values.
        dim: of a head.
    """
    if device.type != "cuda":
        return False
    if find_spec("triton") is None:
        logger.warning("the draft runs without its kernels and CUDA graphs: there is no Triton")
        return False
    from specray.draft import triton_kernels  # Triton, which a CPU lacks

    try:
        triton_kernels.prepare(device, dtype, num_heads, kv_heads, dim)
    except Exception as error:  # noqa: BLE001  # compilers fail in many ways; all cost speed only
        logger.warning(
            "the draft runs without its kernels and CUDA graphs, as Triton failed: %r", error
        )
        return False
    return True
