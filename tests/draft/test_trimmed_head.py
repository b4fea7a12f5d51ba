import json
from pathlib import Path

import pytest
import torch

from specray.draft.trimmed_head import read_head_token_ids, trim_head
from specray.errors import InvalidConfigError
from specray.models.draft_layers import DRAFT_FILE
from tests.draft.tiny_models import tiny_gpt2, tiny_llama


def described(folder: Path, content: object) -> str:
    (folder / DRAFT_FILE).write_text(json.dumps(content))
    return str(folder)


def test_the_most_frequent_are_kept(tmp_path: Path) -> None:
    path = described(tmp_path, {"head_token_ids": [7, 3, 9], "made_by": "anything"})
    assert read_head_token_ids(path, 10, None).tolist() == [7, 3, 9]
    assert read_head_token_ids(path, 10, 2).tolist() == [7, 3]
    assert read_head_token_ids(path, 10, 50).tolist() == [7, 3, 9]


def test_drafts_without_a_list_keep_their_head(tmp_path: Path) -> None:
    assert read_head_token_ids(str(tmp_path), 10, None) is None
    assert read_head_token_ids("someone/on-a-hub", 10, None) is None
    assert read_head_token_ids(described(tmp_path, {"depth": 4}), 10, None) is None
    with pytest.raises(
        InvalidConfigError, match=r"head_tokens is 4096, but .* has no specray_draft.json"
    ):
        read_head_token_ids(str(tmp_path), 10, 4096)


@pytest.mark.parametrize(
    ("token_ids", "problem"),
    [
        ([1, 10], "holds 10, no token id of the draft's 10"),
        ([1, -1], "holds -1"),
        ([1, 2.0], "holds 2.0"),
        ([1, True], "holds True"),
        (["1"], "holds '1'"),
        ([4, 5, 4], "holds a token id twice"),
        ([], "list of at least one"),
        ({"1": 2}, "list of at least one"),
        (5, "list of at least one"),
    ],
)
def test_a_broken_list_names_its_file_and_field(
    tmp_path: Path, token_ids: object, problem: str
) -> None:
    path = described(tmp_path, {"head_token_ids": token_ids})
    with pytest.raises(InvalidConfigError, match=problem) as raised:
        read_head_token_ids(path, 10, None)
    assert f"{tmp_path / DRAFT_FILE}: head_token_ids" in str(raised.value)


def test_a_file_that_is_no_description(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="must hold an object"):
        read_head_token_ids(described(tmp_path, [1, 2]), 10, None)
    (tmp_path / DRAFT_FILE).write_text("{")
    with pytest.raises(InvalidConfigError, match="is no JSON"):
        read_head_token_ids(str(tmp_path), 10, None)


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_gpt2])
@torch.inference_mode()
def test_a_trimmed_model_computes_the_kept_logits(make_model) -> None:
    model = make_model().eval()
    token_ids = torch.tensor([[5, 8, 13]])
    expected = model(token_ids).logits[..., [90, 4, 17]]
    trim_head(model, torch.tensor([90, 4, 17]))
    torch.testing.assert_close(model(token_ids).logits, expected)


def test_a_head_with_biases_keeps_those_of_its_tokens() -> None:
    model = tiny_llama()
    head = torch.nn.Linear(32, 100)
    model.set_output_embeddings(head)
    trim_head(model, torch.tensor([90, 4]))
    assert model.lm_head.bias.tolist() == head.bias[[90, 4]].tolist()


def test_a_model_without_a_head_can_not_be_trimmed() -> None:
    with pytest.raises(InvalidConfigError, match="no linear head"):
        trim_head(tiny_llama().model, torch.tensor([1]))
