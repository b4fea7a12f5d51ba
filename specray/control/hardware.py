"""What accelerators can do, for the roofline.

Peaks are dense (without structured sparsity) and, unless the name says otherwise, for the largest
SXM or OAM part, per device; links are the bandwidth out of one device towards its peers. Sources,
all by the makers: "NVIDIA H100 Tensor Core GPU Datasheet" (SXM and NVL; its first edition for
PCIe), "NVIDIA H200 Tensor Core GPU Datasheet" (SXM and NVL), "NVIDIA Blackwell Architecture
Technical Brief" (HGX B200, per GPU), "NVIDIA A100 Tensor Core GPU Datasheet" (40GB and 80GB, SXM
and PCIe), "NVIDIA L40S Datasheet", "NVIDIA L4 Tensor Core GPU" datasheet, "AMD Instinct MI300X Data
Sheet". Where a sheet gives a peak with sparsity only, it is halved; where it gives a link in both
directions together, as for NVLink, that is halved too. Cards are taken to talk over PCIe: NVLink
bridges are sold apart, and join a few of them only.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from specray.errors import InvalidConfigError

_TERA, _GIGA = 1e12, 1e9
# Of names of parts of a device, and of models with less memory than on any data sheet, such as
# `NVIDIA A100-SXM-64GB`.
_LESSER = {"MIG", "64G"}
_HALVES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """One device of a target: how fast it reads, computes and talks to its peers."""

    name: str
    bandwidth: float  # bytes of its memory per second
    peak_flops: Mapping[str, float]  # FLOP/s by dtype: float32, bfloat16, float16, fp8, int8
    link_bandwidth: float  # bytes per second to its peers, for collectives; 0: has none
    link_latency_s: float = 10e-6  # of one collective of a few bytes

    def flops(self, dtype: str) -> float:
        """Peak FLOP/s of a dtype; one that the device can't compute in is computed in 16 bits."""
        fallback = self.peak_flops.get("bfloat16") or max(self.peak_flops.values())
        return self.peak_flops.get(dtype, fallback)

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes; a read-only mapping can't be pickled."""
        return type(self).from_state, (self.state(),)

    def state(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {
            "name": self.name,
            "bandwidth": self.bandwidth,
            "peak_flops": dict(self.peak_flops),
            "link_bandwidth": self.link_bandwidth,
            "link_latency_s": self.link_latency_s,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "HardwareProfile":
        """The profile that a `state` is of.

        Raises:
            ValueError: it is no such state, or no device's.
        """
        try:
            profile = cls(**{**state, "peak_flops": MappingProxyType(dict(state["peak_flops"]))})
            rates = [profile.bandwidth, *profile.peak_flops.values()]
            is_sound = all(0 < rate < math.inf for rate in rates) and len(rates) > 1
        except (TypeError, KeyError) as error:
            raise ValueError(f"it holds no hardware profile: {error}") from None
        if not is_sound:
            raise ValueError(f"no hardware has these rates: {rates}")
        return profile


def _profile(
    name: str,
    bandwidth: float,
    link_bandwidth: float,
    half: float,
    single: float,
    eight: float,
    *,
    has_fp8: bool = True,
) -> HardwareProfile:
    """A profile from a data sheet's numbers: TB/s, GB/s, and TFLOP/s by width."""
    peaks = dict.fromkeys(_HALVES, half * _TERA)
    peaks |= {"float32": single * _TERA, "int8": eight * _TERA}
    if has_fp8:
        peaks["fp8"] = eight * _TERA
    return HardwareProfile(name, bandwidth * _TERA, MappingProxyType(peaks), link_bandwidth * _GIGA)


PROFILES: Mapping[str, HardwareProfile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            _profile("H100", 3.35, 450, half=989.5, single=67, eight=1979),
            _profile("H100-PCIE", 2.0, 64, half=756.5, single=51, eight=1513),
            _profile("H100-NVL", 3.9, 64, half=835.5, single=60, eight=1670.5),
            _profile("H200", 4.8, 450, half=989.5, single=67, eight=1979),
            _profile("H200-NVL", 4.8, 64, half=835.5, single=60, eight=1670.5),
            _profile("B200", 8.0, 900, half=2250, single=75, eight=4500),
            _profile("A100", 2.039, 300, half=312, single=19.5, eight=624, has_fp8=False),
            _profile("A100-40G", 1.555, 300, half=312, single=19.5, eight=624, has_fp8=False),
            _profile("A100-PCIE", 1.935, 32, half=312, single=19.5, eight=624, has_fp8=False),
            _profile("A100-PCIE-40G", 1.555, 32, half=312, single=19.5, eight=624, has_fp8=False),
            _profile("L40S", 0.864, 32, half=362, single=91.6, eight=733),
            _profile("L4", 0.3, 32, half=121, single=30.3, eight=242.5),
            _profile("MI300X", 5.3, 448, half=1307.4, single=163.4, eight=2614.9),
        )
    }
)


def find_profile(device_name: str) -> HardwareProfile | None:
    """The profile of a device as its driver, vLLM or Ray names it.

    Such as `NVIDIA H100 80GB HBM3`, `AMD_Instinct_MI300X_HF` (vLLM's name on ROCm) or `A100-40G`.
    """
    words = {word.replace("GB", "G") for word in re.split(r"[\s_-]+", device_name.upper())}
    if words & _LESSER:
        return None
    names = [name for name in PROFILES if words.issuperset(name.split("-"))]
    return PROFILES[max(names, key=len)] if names else None


def named_profile(name: str) -> HardwareProfile:
    """The profile that a configuration names.

    Raises:
        InvalidConfigError: there is none of that name; the message lists those there are.
    """
    if name not in PROFILES:
        raise InvalidConfigError(
            f"no hardware profile is called {name!r}; there are {', '.join(PROFILES)}"
        )
    return PROFILES[name]
