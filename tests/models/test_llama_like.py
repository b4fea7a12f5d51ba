import pytest

from specray.models.llama_like import is_llama_like
from tests.draft.test_llama import FITTING, FOREIGN, random_model


@pytest.mark.parametrize("name", FITTING | FOREIGN)
def test_what_our_pass_computes_and_what_is_left_to_transformers(name: str) -> None:
    assert is_llama_like(random_model((FITTING | FOREIGN)[name])) == (name in FITTING)
