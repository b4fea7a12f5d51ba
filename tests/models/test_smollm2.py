"""The bundled models, made for real: half a minute."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specray.models import smollm2
from specray.models.draft_layers import DRAFT_FILE, read_layers
from specray.models.tokenizers import check_same_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def source() -> Any:
    """What both are made of, unpacked once, as that takes longest."""
    return smollm2._load()


@pytest.fixture(scope="module")
def _unpacked_once(source: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smollm2, "_load", lambda: copy.deepcopy(source))
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, _unpacked_once: None) -> Path:
    folder = tmp_path_factory.mktemp("target")
    smollm2.save_target(folder)
    return folder


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory, _unpacked_once: None) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    smollm2.save_draft(folder)
    return folder


def answer(model: Any, tokenizer: Any, question: str) -> str:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])


def test_the_target_says_what_its_source_says(target: Path, source: Any) -> None:
    weights = smollm2.find_weights()
    saved = AutoModelForCausalLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    source_tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)

    question = "What is the capital of France?"
    text = answer(saved, tokenizer, question)

    assert text == answer(source, source_tokenizer, question)
    assert "Paris" in text
    assert text.endswith("<|im_end|>")


def test_the_target_ends_where_its_chat_template_ends(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)

    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == end
    assert tokenizer("<|im_start|>user\nHi<|im_end|>")["input_ids"][-1] == end


def test_the_draft_is_the_targets_own_but_for_what_was_trained(target: Path, draft: Path) -> None:
    large = AutoModelForCausalLM.from_pretrained(target).model
    small = AutoModelForCausalLM.from_pretrained(draft).model
    shipped = read_layers(smollm2.DRAFT)

    assert len(small.layers) == len(shipped.cut_from)
    for index, (layer, source) in enumerate(zip(small.layers, shipped.cut_from, strict=True)):
        weights = layer.state_dict()
        wanted = shipped.trained.get(index, large.layers[source].state_dict())
        assert all(torch.equal(weights[name], weight) for name, weight in wanted.items())
    assert torch.equal(small.embed_tokens.weight, large.embed_tokens.weight)
    check_same_tokenizer(str(target), str(draft))
    assert json.loads((draft / DRAFT_FILE).read_text())["head_token_ids"]


def test_the_draft_often_says_what_the_target_says(target: Path, draft: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target)
    large, small = (AutoModelForCausalLM.from_pretrained(path) for path in (target, draft))
    agreed, count = 0, 0
    for question in ("What is the capital of France?", "Write a short story about a dog."):
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        start = inputs["input_ids"].shape[1]
        text = large.generate(**inputs, max_new_tokens=48, do_sample=False)
        with torch.inference_mode():
            said = small(text).logits[0, start - 1 : -1].argmax(-1)
        agreed += int((said == text[0, start:]).sum())
        count += len(said)

    assert agreed / count > 0.25  # untrained layers: 0.1
