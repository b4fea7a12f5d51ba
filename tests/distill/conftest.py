"""A tiny target: random, with a tokenizer of single characters and a chat template."""

import string
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specray.distill.texts import Passage

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
