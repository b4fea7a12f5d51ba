"""A tiny target: random, with a tokenizer of single characters and a chat template."""

import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from specray.distill.examples import choose_head
from specray.distill.learner import Learner
from specray.distill.losses import LOSSES
from specray.distill.shards import Answer
from specray.distill.student import cut
from specray.distill.texts import Passage

Backend = str | Callable[..., Any]  # of torch.compile

torch.set_num_threads(1)  # tiny tensors, and other workers on the machine

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '|' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant|' }}{% endif %}"
)
CHARS = " \n|" + string.ascii_letters + string.digits + "`.,:?()-_"


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {"</s>": 0, "<s>": 1, "<unk>": 2}
    vocab |= {char: i for i, char in enumerate(CHARS, start=3)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(CHARS) + 3,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=1024,
            bos_token_id=1,
            eos_token_id=0,
            tie_word_embeddings=True,
        )
    )
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.6 if "embed" in name else 0.15)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def few_texts() -> Sequence[Passage]:
    return [
        Passage(f"{'code' if is_code else 'prose'} number {i} {held_out}", is_code, held_out)
        for is_code in (False, True)
        for held_out in (False, True)
        for i in range(8)
    ]


@pytest.fixture(scope="session")
def answers(target: Path) -> list[Answer]:
    """Random texts, and what the target says about them."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    rng = np.random.default_rng(0)
    made = []
    for index in range(12):
        text = rng.integers(3, model.config.vocab_size, 6 + index).astype(np.int32)
        with torch.inference_mode():
            logits = model(torch.tensor(text[None].astype(np.int64))).logits[0, 3:-1]
        logprobs, ids = logits.log_softmax(-1).topk(8)
        made.append(
            Answer(
                index,
                bool(index % 2),
                text[:4],
                text[4:],
                ids.numpy().astype(np.int32),
                logprobs.numpy().astype(np.float16),
            )
        )
    return made


@pytest.fixture
def nothing_compiled() -> None:
    """By other tests, of which torch counts the graphs too."""
    torch.compiler.reset()


def fail_to_compile(*_: object) -> Callable[..., Any]:
    raise OSError("no compiler here")


def run_as_it_is(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
    return graph.forward


def make_learner(
    target: Path, answers: Sequence[Answer], backend: Backend = fail_to_compile
) -> Learner:
    """Of three layers."""
    model = cut(AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32), [0, 3, 5])
    head = choose_head(answers, model.config.vocab_size, 50)
    return Learner(model, head, LOSSES["forward_kl"], None, backend)
