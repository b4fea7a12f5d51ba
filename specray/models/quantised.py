"""Weights in a quarter of the bytes: int8 with a scale for each output channel."""

from torch import Tensor, int8

_SCALE = ".scale"
_LARGEST = 127


def quantise(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 with their scales beside them, `NAME.scale`; all else as it is.

    Args:
        weights: by name; matrices are [output, input].
    """
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() != 2:
            packed[name] = weight.contiguous()
            continue
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / _LARGEST  # [output]
        packed[name] = (weight / scale[:, None]).round().to(int8)
        packed[name + _SCALE] = scale
    return packed


def dequantise(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights that `quantise` was given, but for rounding; in the scales' data type."""
    return {
        name: weight.to(packed[name + _SCALE].dtype) * packed[name + _SCALE][:, None]
        if name + _SCALE in packed
        else weight
        for name, weight in packed.items()
        if not name.endswith(_SCALE)
    }
