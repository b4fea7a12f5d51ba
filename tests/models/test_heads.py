import json
from pathlib import Path
from typing import Any

import pytest

from specray.models.heads import Heads, read_heads

SMALL = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8}


def saved(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(SMALL | config))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"model_type": "llama", "num_key_value_heads": 2}, Heads(8, 2)),
        ({"model_type": "gpt2"}, Heads(8, 8)),
        # Its layers that read all tokens have other heads than those with a window.
        (
            {
                "model_type": "gemma4_text",
                "num_key_value_heads": 4,
                "num_global_key_value_heads": 2,
                "attention_k_eq_v": True,
            },
            Heads(8, 2),
        ),
        ({"model_type": "llama", "hidden_size": 65}, None),  # can't be
    ],
)
def test_heads(tmp_path: Path, config: dict[str, Any], heads: Heads | None) -> None:
    assert read_heads(saved(tmp_path, **config)) == heads


def test_a_model_without_attention_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')

    assert read_heads(str(tmp_path)) is None


def test_a_model_that_tells_of_no_layers_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "blt"}')

    assert read_heads(str(tmp_path)) is None


def test_a_model_that_is_nowhere_has_none_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("specray.models.heads.AutoConfig.from_pretrained", unreachable)

    assert read_heads("nobody/nothing") is None
