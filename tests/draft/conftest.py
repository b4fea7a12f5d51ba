import copy

import pytest
import torch
from transformers import PreTrainedModel

from specray.draft.causal_lm import CausalLm
from specray.draft.llama import LlamaPass
from tests.draft.tiny_models import Pair, tiny_gpt2, tiny_llama


@pytest.fixture(autouse=True, scope="session")
def _single_thread() -> None:
    """Tiny matrices are faster without threads, and repeatable."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama() -> PreTrainedModel:
    return tiny_llama().eval()


@pytest.fixture(scope="session")
def llama_pass(llama: PreTrainedModel) -> Pair:
    return Pair(LlamaPass(copy.deepcopy(llama)), llama)


@pytest.fixture(params=["gpt2", "llama", "llama_pass"], scope="session")
def any_model(request: pytest.FixtureRequest, llama: PreTrainedModel, llama_pass: Pair) -> Pair:
    if request.param == "llama_pass":
        return llama_pass
    reference = llama if request.param == "llama" else tiny_gpt2().eval()
    return Pair(CausalLm(reference), reference)
