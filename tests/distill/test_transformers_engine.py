"""The generator against transformers' own, row by row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specray.distill import transformers_engine
from specray.distill.generation import SampleRequest
from specray.distill.loops import loop_start
from specray.distill.row_cache import GROUPED_ATTENTION, RowCache, bytes_per_column
from specray.distill.transformers_engine import TransformersGenerator

PROMPTS = ((5,), (6, 7, 8), (9, 10, 11, 12, 13, 14), (15, 16))


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def generator(target: Path) -> TransformersGenerator:
    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    return TransformersGenerator(model, frozenset({0}), num_at_once=3)


def greedy_reference(model: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
        if text[-1] == 0:
            break
    return text[len(prompt) :]


def test_greedy_rows_are_what_the_model_says(model: Any, generator: TransformersGenerator) -> None:
    requests = [SampleRequest(prompt, 0, 5 + i, 0.0) for i, prompt in enumerate(PROMPTS)]

    completions = generator.generate(requests, top_k=0)

    for i, (prompt, completion) in enumerate(zip(PROMPTS, completions, strict=True)):
        assert completion.token_ids.tolist() == greedy_reference(model, prompt, 5 + i)
        assert completion.top_ids.shape == (len(completion.token_ids), 0)


def test_the_top_tokens_are_the_models(model: Any, generator: TransformersGenerator) -> None:
    requests = [SampleRequest(prompt, i, 6) for i, prompt in enumerate(PROMPTS)]

    for prompt, found in zip(PROMPTS, generator.generate(requests, top_k=4), strict=True):
        text = torch.tensor([[*prompt, *found.token_ids.tolist()]])
        with torch.inference_mode():
            logits = model(text).logits[0, len(prompt) - 1 : -1]
        wanted = logits.log_softmax(-1).topk(4)
        assert np.array_equal(found.top_ids, wanted.indices.numpy())
        assert np.allclose(found.top_logprobs, wanted.values.numpy(), atol=5e-3)


def test_a_rows_text_does_not_depend_on_its_company(generator: TransformersGenerator) -> None:
    requests = [SampleRequest(prompt, i, 9) for i, prompt in enumerate(PROMPTS)]

    together = generator.generate(requests, top_k=0)

    for request, completion in zip(requests, together, strict=True):
        alone = generator.generate([request], top_k=0)[0]
        assert completion.token_ids.tolist() == alone.token_ids.tolist()


def test_other_seeds_give_other_texts(generator: TransformersGenerator) -> None:
    texts = generator.generate([SampleRequest((5, 6), seed, 8) for seed in range(6)], top_k=0)

    assert len({tuple(text.token_ids.tolist()) for text in texts}) > 1


def test_an_answer_that_may_is_cut_in_its_loop(generator: TransformersGenerator) -> None:
    plain = [SampleRequest(prompt, 0, 128, 0.0) for prompt in PROMPTS]
    cut = [SampleRequest(prompt, 0, 128, 0.0, may_stop_in_loop=True) for prompt in PROMPTS]

    shortened = 0
    for whole, part in zip(generator.generate(plain, 0), generator.generate(cut, 0), strict=True):
        count = len(part.token_ids)
        assert part.token_ids.tolist() == whole.token_ids[:count].tolist()
        if count < len(whole.token_ids):
            shortened += 1
            assert loop_start(part.token_ids) < count
    assert shortened  # a random model soon repeats itself


def test_short_memory_makes_batches_smaller_and_changes_no_text(
    target: Path, generator: TransformersGenerator
) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    num_rows: list[int] = []
    model.base_model.register_forward_pre_hook(
        lambda _module, _args, inputs: num_rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    requests = [SampleRequest(PROMPTS[i % 4], i, 9) for i in range(10)]
    width = max(map(len, PROMPTS)) + 9
    two_rows = 2 * width * bytes_per_column(model)
    short = TransformersGenerator(model, frozenset({0}), free=lambda _: 3 * two_rows)
    none = TransformersGenerator(model, frozenset({0}), free=lambda _: 0)
    wanted = [c.token_ids.tolist() for c in generator.generate(requests, top_k=0)]

    assert [c.token_ids.tolist() for c in short.generate(requests, top_k=0)] == wanted
    assert max(num_rows) == 2
    num_rows.clear()
    assert [c.token_ids.tolist() for c in none.generate(requests, top_k=0)] == wanted
    assert max(num_rows) == 1


def test_a_column_takes_what_the_cache_does(model: Any) -> None:
    cache = RowCache(model, 3, 5)

    keys, values = cache.update(torch.zeros(3, 2, 0, 32), torch.zeros(3, 2, 0, 32), 0)

    assert keys.untyped_storage().nbytes() == 3 * 5 * bytes_per_column(model)
    assert values.untyped_storage().nbytes() == keys.untyped_storage().nbytes()


def test_no_requests_no_answers(generator: TransformersGenerator) -> None:
    assert generator.generate([], 3) == []


def test_a_prefill_that_finds_no_memory_is_parted(
    target: Path, generator: TransformersGenerator
) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    requests = [SampleRequest(PROMPTS[i % 4], i, 9) for i in range(7)]
    num_rows: list[int] = []

    def small(_module: Any, _args: Any, inputs: dict[str, Any]) -> None:
        rows, width = inputs["input_ids"].shape
        num_rows.append(rows)
        if width > 1 and rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.base_model.register_forward_pre_hook(small, with_kwargs=True)
    short = TransformersGenerator(model, frozenset({0}))

    wanted = [c.token_ids.tolist() for c in generator.generate(requests, top_k=0)]
    assert [c.token_ids.tolist() for c in short.generate(requests, top_k=0)] == wanted
    assert num_rows[:6] == [7, 4, 2, 2, 2, 1]


def test_a_prefill_of_one_text_that_finds_no_memory_fails(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    num_calls = [0]

    def full(*_: Any) -> None:
        num_calls[0] += 1
        assert num_calls[0] < 30, "endless"
        raise torch.OutOfMemoryError("CUDA out of memory")

    model.base_model.register_forward_pre_hook(full)
    with pytest.raises(torch.OutOfMemoryError):
        TransformersGenerator(model, frozenset({0})).generate([SampleRequest((5,), 0, 2)] * 3, 0)


@pytest.mark.parametrize(("most", "rows"), [(12, [2, 2, 2, 1]), (3, [1] * 7)])
def test_a_prefills_passes_are_bounded(
    target: Path,
    generator: TransformersGenerator,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    rows: list[int],
) -> None:
    requests = [SampleRequest(PROMPTS[i % 4], i, 9) for i in range(7)]
    wanted = [c.token_ids.tolist() for c in generator.generate(requests, top_k=0)]
    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    shapes: list[Any] = []
    model.base_model.register_forward_pre_hook(
        lambda _module, _args, inputs: shapes.append(inputs["input_ids"].shape), with_kwargs=True
    )
    monkeypatch.setattr(transformers_engine, "_PREFILL_TOKENS", {"cpu": most})

    found = TransformersGenerator(model, frozenset({0})).generate(requests, top_k=0)

    assert [c.token_ids.tolist() for c in found] == wanted
    assert [shape[0] for shape in shapes if shape[1] > 1] == rows


def test_rows_at_their_end_are_given_up(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation=GROUPED_ATTENTION
    )
    num_rows: list[int] = []
    model.base_model.register_forward_pre_hook(
        lambda _module, _args, inputs: num_rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    requests = [SampleRequest((5,), i, n) for i, n in enumerate((2, 2, 9, 9))]
    TransformersGenerator(model, frozenset({-1})).generate(requests, top_k=0)

    assert num_rows == [4, 4, *[2] * 7]


def test_a_large_model_is_not_asked_for_more_than_it_has_memory_for(model: Any) -> None:
    row_bytes = 512 * bytes_per_column(model)
    generators = [
        TransformersGenerator(model, frozenset({0}), 100, free=lambda _, n=n: n * row_bytes)
        for n in (0, 50, 1000)
    ]

    assert [generator.num_at_once for generator in generators] == [1, 20, 100]
