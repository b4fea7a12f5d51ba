"""vLLM's own drafter in a target: `engine_kwargs.speculative_config`, under our depths."""

from collections.abc import Mapping
from typing import Any

from specray.config import MAX_DEPTH

_METHODS = ("eagle", "eagle3", "mtp", "draft_model", "ngram", "suffix", "medusa", "dflash")
_MTP = "_mtp"  # what vLLM calls those of single families, and takes for `mtp`
_OPTIONS = {
    "num_speculative_tokens_per_batch_size": "depths are chosen by specray; for a table of them "
    "set speculation.depth_policy to {name: batch_size_table, table: ...}",
    "synthetic_acceptance_rates": "it would change the output",
    "synthetic_acceptance_rate": "it would change the output",
    "synthetic_acceptance_length": "it would change the output",
}
_CHOICES = {
    "draft_sample_method": ("greedy", "specray takes its tokens for point masses"),
    "rejection_sample_method": ("standard", "others change the output"),
}


def check_engine_drafter(config: Any) -> None:
    """Checks a target's `speculative_config`; what is vLLM's own to judge is left to it.

    Raises:
        ValueError: it can't be used under specray's scheduler; says which option, and why.
    """
    if not isinstance(config, Mapping) or not config:
        raise ValueError(
            "engine_kwargs.speculative_config must be vLLM's mapping, such as {method: eagle3, "
            f"model: ..., num_speculative_tokens: 3}} (got {config!r:.80})"
        )
    dashed = [name for name in config if "-" in str(name)]
    if dashed:
        raise ValueError(
            f"engine_kwargs.speculative_config: write {dashed[0]} with underscores, as here"
        )
    _check_names(config)
    for name, why in _OPTIONS.items():
        if config.get(name) is not None:
            raise ValueError(f"engine_kwargs.speculative_config.{name} must be left out: {why}")
    for name, (choice, why) in _CHOICES.items():
        if (config.get(name) or choice) != choice:
            raise ValueError(f"engine_kwargs.speculative_config.{name} must be {choice}, as {why}")
    _check_depth(config)


def drafting_config(config: Mapping[str, Any], max_depth: int) -> dict[str, Any]:
    """The same, with `num_speculative_tokens`, which sizes the engine's buffers, filled in."""
    return {"num_speculative_tokens": max_depth} | dict(config)


def _is_mtp(config: Mapping[str, Any]) -> bool:
    return str(config.get("method")).endswith("mtp")


def _check_names(config: Mapping[str, Any]) -> None:
    method = config.get("method")
    is_known = isinstance(method, str) and (method in _METHODS or method.endswith(_MTP))
    if method is not None and not is_known:
        raise ValueError(
            f"engine_kwargs.speculative_config.method must be one of {', '.join(_METHODS)} "
            f"(got {method!r:.80})"
        )
    model = config.get("model")
    if not (model is None or isinstance(model, str)):
        raise ValueError(
            "engine_kwargs.speculative_config.model must be a folder, a hub id or bundled:NAME "
            f"(got {model!r:.80})"
        )


def _check_depth(config: Mapping[str, Any]) -> None:
    depth = config.get("num_speculative_tokens")
    if depth is None and _is_mtp(config):
        raise ValueError(
            "engine_kwargs.speculative_config.num_speculative_tokens is missing: MTP heads draft "
            "multiples of a number of their own"
        )
    is_depth = isinstance(depth, int) and not isinstance(depth, bool) and 1 <= depth <= MAX_DEPTH
    if depth is not None and not is_depth:
        raise ValueError(
            "engine_kwargs.speculative_config.num_speculative_tokens must be from 1 to "
            f"{MAX_DEPTH} (got {depth!r:.80})"
        )
