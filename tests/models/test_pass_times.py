import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specray.models.causal_lm import load_causal_lm
from specray.models.pass_times import pass_times
from tests.target import tiny_model

PROMPT = torch.tensor([[1, 2, 3]])
FOLLOWING = torch.tensor([[4, 5, 6]])


class FakeModel:
    """Takes its time; its cache is the list of what it has read."""

    def __init__(self, seconds_of: Callable[[int, int], float]) -> None:
        self.passes: list[tuple[list[list[int]], list[int]]] = []  # tokens, and what was cached
        self._seconds_of = seconds_of  # by tokens and passes before

    def __call__(self, token_ids: Tensor, past_key_values: Any = None, **_: Any) -> SimpleNamespace:
        cache = [] if past_key_values is None else past_key_values
        if past_key_values is not None:
            time.sleep(self._seconds_of(token_ids.shape[1], len(self.passes)))
            self.passes.append((token_ids.tolist(), list(cache)))
        cache += token_ids[0].tolist()
        return SimpleNamespace(logits=torch.zeros(*token_ids.shape, 8), past_key_values=cache)


def test_each_pass_is_of_one_request_behind_its_prompt() -> None:
    model = FakeModel(lambda count, _: 0.0)

    assert len(pass_times(model, PROMPT, FOLLOWING)) == 3

    assert all(cached == [1, 2, 3] for _, cached in model.passes)
    assert {len(tokens[0]) for tokens, _ in model.passes} == {1, 2, 3}
    assert all(tokens == [[4, 5, 6][: len(tokens[0])]] for tokens, _ in model.passes)


def test_the_fastest_pass_counts_for_each_number_of_tokens() -> None:
    model = FakeModel(lambda count, passes: 0.01 * count + (0.3 if passes < 3 else 0.0))

    seconds = pass_times(model, PROMPT, FOLLOWING)

    assert all(0.01 * count <= seconds[count - 1] < 0.3 for count in (1, 2, 3))


@pytest.mark.parametrize("save", [tiny_model.save, tiny_model.save_windowed])
def test_real_models_are_timed_also_past_their_windows(
    tmp_path: Path, save: Callable[[Path], None]
) -> None:
    save(tmp_path)
    prompt, following = torch.arange(1, 21)[None], torch.arange(21, 30)[None]

    seconds = pass_times(load_causal_lm(str(tmp_path)), prompt, following)

    assert len(seconds) == 9
    assert all(0 < each < 1 for each in seconds)
