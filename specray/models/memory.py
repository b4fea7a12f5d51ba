"""How much memory a device has left, and whether an error says that there was too little."""

import psutil
import torch

_CPU_ALLOCATOR = ("DefaultCPUAllocator", "Cannot allocate memory")  # torch's, the system's words


def free_bytes(device: torch.device) -> int:
    """What can be allocated on a device without an error or swapping."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    free, _ = torch.cuda.mem_get_info(device)
    # PyTorch keeps what was freed, for itself.
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def is_shortage(error: Exception) -> bool:
    """Whether memory ended: on a CPU PyTorch raises a RuntimeError that says so in words only."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _CPU_ALLOCATOR)
