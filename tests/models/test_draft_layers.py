import json
from copy import deepcopy
from pathlib import Path

import torch

from specray.models import smollm2
from specray.models.draft_layers import DRAFT_FILE, DraftLayers, read_layers, write_layers


def test_layers_come_back_but_for_rounding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {"mlp.up_proj.weight": torch.randn(8, 4), "norm.weight": torch.rand(4)}

    write_layers(DraftLayers((0, 3, 7), {1: weights, 2: deepcopy(weights)}), {"a": 1}, tmp_path)
    layers = read_layers(tmp_path)

    assert layers.cut_from == (0, 3, 7)
    assert layers.trained.keys() == {1, 2}
    assert torch.equal(layers.trained[2]["norm.weight"], weights["norm.weight"])
    assert torch.allclose(
        layers.trained[1]["mlp.up_proj.weight"], weights["mlp.up_proj.weight"], atol=0.02
    )
    assert json.loads((tmp_path / DRAFT_FILE).read_text()) == {"a": 1}


def test_the_shipped_draft_is_small_and_complete() -> None:
    layers = read_layers(smollm2.DRAFT)
    facts = json.loads((smollm2.DRAFT / DRAFT_FILE).read_text())

    assert sum(file.stat().st_size for file in smollm2.DRAFT.iterdir()) <= 48 << 20
    assert len(layers.cut_from) == max(layers.trained) + 1
    head = facts["head_token_ids"]
    assert len(set(head)) == len(head) <= 16384
    assert max(head) < 49152
    report = (smollm2.DRAFT / "REPORT.md").read_text()
    for command in facts["commands"]:
        assert command.startswith("specray distill bundled:smollm2-135m-instruct ")
        assert command in report
