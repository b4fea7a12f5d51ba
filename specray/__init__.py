"""Disaggregated speculative decoding for Ray Serve: drafts and targets in replicas of their own.

`specray:build_app` is the application builder for `serve run` and RayService.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from specray.serve.app import build_app

__all__ = ["__version__", "build_app"]


def __getattr__(name: str) -> Any:
    """Load Ray only when the application is built: vLLM's processes import specray as well."""
    if name == "build_app":
        from specray.serve.app import build_app

        return build_app
    raise AttributeError(f"module 'specray' has no attribute {name!r}")
