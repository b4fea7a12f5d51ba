"""The memory of GPUs, by the names that Ray and their drivers give them."""

_MIB = 1 << 20

# What `nvidia-smi` (`rocm-smi`) reports as the total, in MiB, by the words that tell a GPU from
# others. A100s are of two sizes under one name; Ray's longer names tell them apart, but only on
# nodes that were given them by hand.
_TOTAL_MIB: dict[str, tuple[int, ...]] = {
    "T4": (15_360,),
    "A10G": (23_028,),
    "L4": (23_034,),
    "L40S": (46_068,),
    "A100": (40_960, 81_920),
    "A100-40G": (40_960,),
    "A100-80G": (81_920,),
    "H100": (81_559,),
    "H100-NVL": (95_830,),
    "H200": (143_771,),
    "B200": (183_359,),
    "MI300X": (196_592,),
}
_COMMON = ("L4", "L40S", "H100", "H200", "B200")  # offered when a file names none


def memory_of(name: str | None) -> tuple[int, ...]:
    """Bytes of one GPU of that name: several if it comes in several sizes, none if not known.

    Args:
        name: Ray's, such as `A100-40G`, or the driver's, such as `NVIDIA A100-SXM4-40GB`.
    """
    words = (name or "").upper().replace("GB", "G").replace("-", " ").split()
    known = [key for key in _TOTAL_MIB if set(key.split("-")) <= set(words)]
    return tuple(mib * _MIB for mib in _TOTAL_MIB[max(known, key=len)]) if known else ()


def smallest_with(num_bytes: float) -> str | None:
    """The smallest common GPU that has so much memory."""
    return next((name for name in _COMMON if max(memory_of(name)) >= num_bytes), None)
