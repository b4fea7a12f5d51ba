"""A Serve config file, read as Ray reads it, but without passing over what Ray does not know."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from specray.errors import InvalidConfigError

BUILDER = "specray:build_app"
"""The `import_path` of our applications."""

_PORTS = 65536
_MERGE = "tag:yaml.org,2002:merge"  # `<<`, which may come twice


class _Loader(yaml.SafeLoader):
    """As `yaml.safe_load`, which however lets the last of two equal keys win without a word."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                first = seen.setdefault((key.tag, key.value), key.start_mark)
                if first is not key.start_mark:
                    raise yaml.composer.ComposerError(
                        f"{key.value} is set here",
                        first,
                        "and again here; leave one out",
                        key.start_mark,
                    )
        return node


def load(text: str) -> Any:
    """What YAML says, but for equal keys, which are refused; raises `yaml.YAMLError`."""
    return yaml.load(text, _Loader)


def read_file(path: Path) -> ServeDeploySchema:
    """A Serve config file, checked by Ray's own schema and for keys that Ray would ignore.

    Raises:
        InvalidConfigError: naming the file and the field.
    """
    try:
        raw = load(path.read_text())
        if not isinstance(raw, dict):
            raise InvalidConfigError(f"{path}: holds no settings; deployments/local.yaml is one")
        config = ServeDeploySchema.model_validate(raw)
    except OSError as error:
        raise InvalidConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path}: {error}") from None
    faults = [*_unknown_keys(raw, ServeDeploySchema, ""), *_faults(config)]
    if faults:
        raise InvalidConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return config


def _faults(config: ServeDeploySchema) -> Iterator[str]:
    """What Ray finds out late."""
    if not 0 <= config.http_options.port < _PORTS:
        yield f"http_options.port: {config.http_options.port} is no port; it ends at {_PORTS - 1}"
    for app in config.applications:
        if app.import_path != BUILDER and get_close_matches(app.import_path, [BUILDER], cutoff=0.8):
            yield (
                f"applications.{app.name}.import_path: {app.import_path}; do you mean {BUILDER}?"
            )


def _unknown_keys(raw: dict[str, Any], model: type[BaseModel], place: str) -> list[str]:
    """One message for each key that the schema does not have, at any depth."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    fields |= model.model_fields
    faults = []
    for key, value in raw.items():
        if key not in fields:
            faults.append(
                f"{place}{key}: Ray Serve has no such key and would ignore it{_near(key, fields)}"
            )
            continue
        inner = _model_in(fields[key].annotation)
        if inner is None:
            continue
        for name, item in _items(f"{place}{key}", value):
            faults += _unknown_keys(item, inner, f"{name}.")
    return faults


def _near(key: Any, known: dict[str, Any]) -> str:
    found = get_close_matches(str(key), known, n=1, cutoff=0.75)
    return f"; do you mean {found[0]}?" if found else f"; it has {', '.join(sorted(known))}"


def _items(name: str, value: Any) -> list[tuple[str, dict[str, Any]]]:
    """The mappings in a value, which is one itself or a list of them, with their places."""
    if isinstance(value, list):
        named = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
    else:
        named = [(name, value)]
    return [(place, item) for place, item in named if isinstance(item, dict)]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The schema in `Model`, `list[Model]` or `Model | None`; None if there is none, or several."""
    if get_origin(annotation) in (list, Union, UnionType):
        found = {_model_in(part) for part in get_args(annotation)} - {None}
        return found.pop() if len(found) == 1 else None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None
