import copy
from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from specray.draft.causal_lm import CausalLm
from specray.draft.llama import LlamaPass
from tests.draft.tiny_models import Pair, tiny_gpt2, tiny_llama


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    """Tiny matrices are faster without threads, and repeatable.

    Afterwards as well: the threads that Numba is told to use are PyTorch's too (one OpenMP), and
    where other processes have the cores, two of them wait for each other a hundred times as long
    as tiny matrices take, in all tests that follow in this process.
    """
    torch.set_num_threads(1)
    yield
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
