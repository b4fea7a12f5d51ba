from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specray.distill import prefix
from specray.distill.layer_search import make_probe, search
from specray.distill.prefix import PrefixStore, is_separable, prefix_length, run_prefix
from specray.distill.shards import Answer
from specray.distill.student import attach_prefix, cut, detach_prefix, layers_of
from specray.errors import InvalidConfigError


@pytest.fixture
def model(target: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()


def test_a_student_has_the_layers_it_was_given(model: Any) -> None:
    held = list(layers_of(model))

    student = cut(model, [0, 2, 5])

    assert list(layers_of(student)) == [held[0], held[2], held[5]]
    assert student.config.num_hidden_layers == 3
    assert [layer.self_attn.layer_idx for layer in layers_of(student)] == [0, 1, 2]


@pytest.mark.parametrize("layers", [[0, 6], [-1], []])
def test_layers_that_the_target_lacks_are_named(model: Any, layers: list[int]) -> None:
    with pytest.raises(InvalidConfigError, match="the target has 0 to 5"):
        cut(model, layers)


def test_a_layer_is_kept_once_only(model: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"layers \[0, 2, 2\]: each can be kept once"):
        cut(model, [0, 2, 2])


@pytest.mark.parametrize(
    ("layers", "limit", "length"),
    [
        ([0, 1, 2, 5], 3, 3),
        ([0, 1, 2, 5], 2, 2),
        ([0, 2, 3], 3, 1),
        ([1, 2], 3, 0),
        ([0], 3, 0),
        ([], 3, 0),
        ([0, 1, 4, 3], 3, 2),  # the last one stands at its own place again
    ],
)
def test_only_the_targets_own_beginning_is_shared(
    layers: list[int], limit: int, length: int
) -> None:
    assert prefix_length(layers, limit) == length


def test_prefix_and_rest_give_what_the_whole_gives(model: Any) -> None:
    assert is_separable(model, 2)
    assert len(layers_of(model)) == 6
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        whole = model(ids).logits
        prefix = run_prefix(model, ids, 2)
        first = detach_prefix(model, 2)
        parted = model(inputs_embeds=prefix, use_cache=False).logits
        attach_prefix(model, first)
        again = model(ids).logits

    assert torch.allclose(whole, parted, atol=1e-5)
    assert torch.equal(whole, again)


def test_a_model_that_scales_its_input_has_no_prefix(model: Any) -> None:
    embed = model.base_model.embed_tokens
    plain = model.base_model.forward

    def scaled(*args: Any, inputs_embeds: Any = None, **kwargs: Any) -> Any:
        if inputs_embeds is None:
            inputs_embeds = embed(kwargs.pop("input_ids"))
        return plain(*args, inputs_embeds=inputs_embeds * 3, **kwargs)

    model.base_model.forward = scaled

    assert not is_separable(model, 2)


def test_a_store_gives_back_each_answers_rows(tmp_path: Path) -> None:
    answers = [
        Answer(i, True, np.arange(2), np.arange(n), np.zeros((n, 1)), np.zeros((n, 1)))
        for i, n in enumerate((3, 1, 2))
    ]
    runs = []

    def run(ids: torch.Tensor) -> torch.Tensor:
        runs.append(ids)
        last = torch.arange(ids.shape[1])  # what comes later is not seen
        return ids[..., None].float().repeat(1, 1, 4) + 10 * last[None, :, None]

    for _ in range(2):  # the second finds the files of the first
        store = PrefixStore(tmp_path)
        store.add("a", answers[:2], run)
        store.add("b", answers[2:], run)

    rows = store.read([2, 0], width=5)

    assert [tuple(ids.shape) for ids in runs] == [(2, 4), (1, 3)]
    assert rows[0, :, 0].tolist() == [0, 11, 20, 0, 0]
    assert rows[1, :, 0].tolist() == [0, 11, 20, 31, 0]


def test_a_stores_passes_are_of_like_lengths_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "_TOKENS_AT_ONCE", 40)
    lengths = (3, 30, 4, 28, 5, 50, 3)
    answers = [
        Answer(i, True, np.full(2, i), np.full(n, i), np.zeros((n, 1)), np.zeros((n, 1)))
        for i, n in enumerate(lengths)
    ]
    shapes = []

    def run(ids: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return ids[..., None].float()

    store = PrefixStore(tmp_path)
    store.add("a", answers, run)

    assert shapes == [(1, 51), (1, 31), (1, 29), (4, 6)]
    rows = store.read(range(len(lengths)), width=51)[:, :, 0]
    assert rows.tolist() == [[i] * (n + 1) + [0] * (50 - n) for i, n in enumerate(lengths)]


def test_a_search_drops_the_layers_that_do_nothing(model: Any) -> None:
    idle = (1, 3, 4)
    with torch.no_grad():
        for index in idle:
            layers_of(model)[index].self_attn.o_proj.weight.zero_()
            layers_of(model)[index].mlp.down_proj.weight.zero_()
    head = model.get_output_embeddings().weight.detach()
    probe = make_probe(model, torch.arange(5, 25).reshape(2, 10), head)

    rounds = search(model, probe, head, num_layers=3, fixed=(0,))

    assert rounds[-1].layers == (0, 2, 5)
    assert rounds[-1].kl < 1e-6
    assert len(layers_of(model)) == 6


def test_a_search_keeps_what_is_fixed(model: Any) -> None:
    head = model.get_output_embeddings().weight.detach()
    probe = make_probe(model, torch.arange(5, 25).reshape(2, 10), head)

    rounds = search(model, probe, head, num_layers=3, fixed=(0, 3))

    assert {0, 3} <= set(rounds[-1].layers)
    assert [len(candidate.layers) for candidate in rounds] == [5, 4, 3]
