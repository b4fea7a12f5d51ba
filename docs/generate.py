"""Writes what the documentation takes from the code: settings, commands, sizing tables.

Run it after a change of either (`python docs/generate.py`); a test tells when that was forgotten.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from specray import cli, config
from specray.control.speedup import block_efficiencies
from specray.serve.settings import AppArgs, RouterConfig

DOCS = Path(__file__).parent
_MARK = "<!-- {} by docs/generate.py -->"

_MODELS: dict[str, type[BaseModel]] = {
    "args": AppArgs,
    "args.draft": config.DraftConfig,
    "args.draft.prompt_lookup": config.PromptLookupConfig,
    "args.draft.ngram": config.NgramDraftConfig,
    "args.draft.model": config.ModelDraftConfig,
    "args.draft.custom": config.CustomDraftConfig,
    "args.draft.simulation": config.SimulationConfig,
    "args.speculation": config.SpeculationConfig,
    "args.speculation.objective": config.ObjectiveConfig,
    "args.router": RouterConfig,
    "args.observability": config.ObservabilityConfig,
    "deployments: controller: user_config": config.LivePolicyConfig,
    "deployments: draft: user_config": config.LiveDraftConfig,
}
_PLACES = {model: place for place, model in _MODELS.items()}


def configuration() -> str:
    """A section with a table for each of our settings' models."""
    return "\n".join(_section(place, model) for place, model in _MODELS.items())


def _section(place: str, model: type[BaseModel]) -> str:
    about = " ".join((model.__doc__ or "").split("\n\n")[0].split())
    rows = [_row(name, field) for name, field in model.model_fields.items()]
    table = ["| key | type | default | meaning |", "|---|---|---|---|", *rows]
    return f"## `{place}`\n\n{about}\n\n" + "\n".join(table) + "\n"


def _row(name: str, field: FieldInfo) -> str:
    kind = _kind(field.annotation) + _bounds(field.metadata)
    return f"| `{name}` | {kind} | {_default(field)} | {field.description or ''} |"


def _kind(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_kind(part) for part in parts if part is not type(None))
    if origin is tuple:
        return f"list of {_kind(parts[0])}"
    if origin is dict:
        return "mapping"
    if origin is Annotated:
        return _kind(parts[0]) + _bounds(parts[1:])
    if is_dataclass(annotation):  # a rule
        return next(f"`{field.default}`" for field in fields(annotation) if field.name == "name")
    if annotation in _PLACES:
        place = _PLACES[annotation]
        return f"[`{place}`](#{place.replace('.', '')})"
    return str(getattr(annotation, "__name__", annotation))


def _bounds(metadata: Iterable[Any]) -> str:
    return "".join(f", {bound}" for part in metadata for bound in _bounds_of(part))


def _bounds_of(part: Any) -> Iterator[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    for name, sign in signs.items():
        if (value := getattr(part, name, None)) is not None:
            yield f"{sign} {value:g}"
    if (pattern := getattr(part, "pattern", None)) is not None:
        yield f"matches `{pattern}`"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    default = field.get_default(call_default_factory=True)
    if is_dataclass(default):
        default = getattr(default, "name", default)  # a rule
    if default is None or isinstance(default, BaseModel) or default in ((), {}):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


@dataclass(frozen=True, slots=True)
class Example:
    """A target on its GPUs, and a draft on one more; see docs/sizing.md for where figures are from.

    Bytes and parameters are of the whole target; H100 SXM: 3.35 TB/s, 989 TFLOP/s in bfloat16.
    """

    num_gpus: int
    weight_bytes: float
    kv_bytes_per_token: float
    num_parameters: float
    flops: float  # peak of one GPU in the target's precision
    draft_token_s: float  # one token of the draft, for the whole batch
    acceptance: float  # of each draft token
    context: int = 2048

    def step_s(self, num_requests: int, depth: int) -> float:
        """Seconds of a verification: memory, then arithmetic, and what comes on top."""
        tokens = num_requests * (depth + 1)
        kv_bytes = num_requests * self.context * self.kv_bytes_per_token
        memory_s = (self.weight_bytes + kv_bytes) / (self.num_gpus * 3.35e12 * _SHARE)
        compute_s = 2 * self.num_parameters * tokens / (self.num_gpus * self.flops * _SHARE)
        return memory_s + compute_s + _OVERHEAD_S

    def tokens_per_s(self, num_requests: int, depth: int) -> float:
        """Goodput, with all drafting and the relay on the critical path."""
        draft_s = depth * self.draft_token_s + (_RELAY_S if depth else 0.0)
        tokens = num_requests * block_efficiencies([self.acceptance] * depth)[-1]
        return tokens / (self.step_s(num_requests, depth) + draft_s)


_SHARE = 0.8  # of the data sheet's bandwidth and FLOP/s, as `specray plan` has it
_OVERHEAD_S, _RELAY_S = 0.002, 0.0006
_GIB = 2**30

EXAMPLES = {
    "70b": Example(4, 4 * 32.85 * _GIB, 4 * 80 * 1024, 70.6e9, 989e12, 0.0029, 0.7),
    "405b": Example(8, 8 * 56.71 * _GIB, 8 * 63 * 1024, 406e9, 989e12, 0.0081, 0.7),
}


def sizing(example: Example, batches: Sequence[int] = (1, 4, 16, 32, 64, 128, 256)) -> str:
    """A table of the best depth and what it brings, by requests at once."""
    lines = [
        "| requests at once | best depth | tokens/s off | tokens/s on | ratio | per GPU |",
        "|---|---|---|---|---|---|",
    ]
    for batch in batches:
        depth = max(range(9), key=lambda k: example.tokens_per_s(batch, k))
        off, on = example.tokens_per_s(batch, 0), example.tokens_per_s(batch, depth)
        per_gpu = on / off * example.num_gpus / (example.num_gpus + 1)
        lines.append(
            f"| {batch} | {depth} | {off:.0f} | {on:.0f} | {on / off:.2f} | {per_gpu:.2f} |"
        )
    return "\n".join(lines) + "\n"


def commands() -> str:
    """A section with the help of each subcommand."""
    return "\n".join(
        f"## `specray {name}`\n\n```text\n{cli.help_of(name)}```\n" for name in cli.COMMANDS
    )


def outputs() -> dict[Path, str]:
    """Each documentation file with a generated part, and its text."""
    parts = {"configuration.md": {"reference": configuration()}}
    parts["cli.md"] = {"commands": commands()}
    parts["sizing.md"] = {name: sizing(example) for name, example in EXAMPLES.items()}
    return {DOCS / name: _filled(DOCS / name, texts) for name, texts in parts.items()}


def _filled(file: Path, texts: dict[str, str]) -> str:
    page = file.read_text()
    for name, text in texts.items():
        begin, end = _MARK.format(f"{name}, begun"), _MARK.format(f"{name}, ended")
        before, rest = page.split(begin)
        page = f"{before}{begin}\n\n{text}\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    for path, text in outputs().items():
        path.write_text(text)
        sys.stdout.write(f"{path.relative_to(DOCS.parent)}\n")
