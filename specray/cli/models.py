"""`specray models`: what is bundled, and making it ahead of the first start."""

import argparse
import logging

from specray.cli.output import say
from specray.models.bundled import BUNDLED, default_cache, find, folder_of, prepare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares `list` and `prepare`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", help="default: list")
    actions.add_parser("list", help="name the bundled models and where they lie")
    preparing = actions.add_parser("prepare", help="make bundled models, so that serving need not")
    preparing.add_argument("names", nargs="*", metavar="NAME", help="default: all of them")


def run(args: argparse.Namespace) -> int:
    """Lists or prepares.

    Raises:
        InvalidConfigError: if a name is unknown or the package it is made from is missing.
    """
    if args.action == "prepare":
        _prepare(args.names or list(BUNDLED))
    else:
        _list()
    return 0


def _list() -> None:
    for model in BUNDLED.values():
        folder = folder_of(model, default_cache())
        state = str(folder) if folder.is_dir() else "not prepared yet"
        say(f"bundled:{model.name}\n  {model.description}\n  {state}")


def _prepare(names: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for model in [find(name.removeprefix("bundled:")) for name in names]:
        say(f"bundled:{model.name} {prepare(model)}")
