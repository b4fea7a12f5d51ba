"""How many bits a quantised checkpoint keeps of each weight."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_SCALE_BITS = 16  # of a group of weights
_ZERO_POINT_BITS = 4
_FP8_METHODS = ("fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt")

REFUSED_METHODS = ("fbgemm_fp8", "fp_quant")
"""What vLLM 0.29 calls deprecated: it needs `allow_deprecated_quantization`."""


class Quantization(NamedTuple):
    """What `quantization_config` of a config.json, or vLLM's `quantization`, amounts to."""

    bits: float  # of a weight of a linear layer, with its share of the scales
    kept: tuple[str, ...]  # names, or parts of names, of the layers left as they are
    compute_dtype: str | None = None  # of the products; None: weights are widened to the model's

    def applies_to(self, layer: str) -> bool:
        """Whether the linear layer of that name is quantised; the head never is."""
        return not any(_matches(layer, pattern) for pattern in ("lm_head", *self.kept))


def read_quantization(given: Mapping[str, Any]) -> Quantization | None:
    """The meaning of a `quantization_config`; None for a method that is not known here."""
    kept = next(
        (
            given[key]
            for key in ("modules_to_not_convert", "ignored_layers", "ignore")
            if given.get(key)
        ),
        (),
    )
    bits = _bits(given)
    return None if bits is None else Quantization(bits, tuple(kept), _compute_dtype(given))


def _bits(given: Mapping[str, Any]) -> float | None:
    method = str(given.get("quant_method", ""))
    if method in _FP8_METHODS:
        # Scales of a row or a block of 128 × 128 weights don't count.
        return None if "FP4" in str(given.get("quant_algo", "")) else 8.0
    if method in ("awq", "gptq"):
        group = int(given.get("group_size", 128))
        overhead = (_SCALE_BITS + _ZERO_POINT_BITS) / group if group > 0 else 0.0
        return float(given.get("bits", 4)) + overhead
    if method == "mxfp4":  # a scale of eight bits for 32 weights
        return 4 + 8 / 32
    if method == "compressed-tensors":
        weights = _only_group(given).get("weights", {})
        group = weights.get("group_size") or 0
        bits = weights.get("num_bits")
        return None if bits is None else bits + (_SCALE_BITS / group if group > 0 else 0.0)
    return None


def _compute_dtype(given: Mapping[str, Any]) -> str | None:
    """Both sides of a product have to be of eight bits for it to be computed in them."""
    if given.get("quant_method") in _FP8_METHODS:
        return "fp8"
    inputs = _only_group(given).get("input_activations") or {}
    if inputs.get("num_bits") != 8:
        return None
    return "fp8" if inputs.get("type") == "float" else "int8"


def _only_group(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What compressed-tensors says of all layers; nothing where it says several things."""
    groups = list(given.get("config_groups", {}).values())
    return groups[0] if len(groups) == 1 else {}


def _matches(layer: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), layer) is not None
    parts = re.escape(f".{pattern}.").replace(r"\*", "[^.]*")
    return re.search(parts, f".{layer}.") is not None
