"""Whether a draft's own kernels run on a device."""

import logging
import subprocess
from importlib.util import find_spec

import torch

logger = logging.getLogger(__name__)


def has_kernels(device: torch.device) -> bool:
    """Whether there is Triton for the device, which also needs a C compiler; the log says if not.

    A draft without them computes the same in more operations, and copies keys and values.
    """
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    from specray.draft import triton_kernels  # Triton, which a CPU lacks

    try:
        ones = torch.ones(1, 16, device=device)
        triton_kernels.rms_norm(ones, ones[0], 0.0)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        logger.warning("the draft runs without its kernels, as Triton failed: %s", error)
        return False
    return True
