import time
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from specray.draft.attention import NewTokens
from specray.draft.decoding import Batch, Decoded
from specray.draft.language_model import LanguageModel
from specray.draft.slowed import SlowedDecoder, SlowedModel
from specray.draft.slowness import Slowness


class FakeModel:
    """A model whose passes take no time."""

    device, dtype = torch.device("cpu"), torch.float32
    vocab_size, max_positions, layout = 8, 16, None
    copies_rows = False
    head_token_ids: Tensor | None = torch.tensor([1, 2])

    def make_cache(self, rows: object) -> object:
        return ("cache of", rows)

    def next_logits(self, new: object, cache: object) -> Tensor:
        return torch.tensor([[1.0, 2.0]])


def duration_s(work: Callable[[], object]) -> float:
    started_s = time.monotonic()
    work()
    return time.monotonic() - started_s


def slowed(slowness: Slowness) -> LanguageModel:
    return SlowedModel(FakeModel(), slowness)  # type: ignore[arg-type]


def test_a_pass_takes_its_time_and_says_the_same() -> None:
    slowness = Slowness(pass_ms=40.0)
    model, new = slowed(slowness), NewTokens(torch.tensor([3]), torch.tensor([0]), [1], [1])
    cache = model.make_cache([])

    assert cache == ("cache of", [])
    assert duration_s(lambda: model.next_logits(new, cache)) >= 0.04
    slowness.pass_ms = 60.0
    assert duration_s(lambda: model.next_logits(new, cache)) >= 0.06
    assert model.next_logits(new, cache).tolist() == [[1.0, 2.0]]


class FakeDecoder:
    """A decoder whose passes take no time."""

    def decode(self, batch: Batch) -> Decoded:
        return cast("Decoded", ("decoded", batch))


def test_all_passes_of_a_proposal_take_their_time() -> None:
    batch = Batch([], [], [], (3, 1), shows_distributions=False)
    decoder = SlowedDecoder(FakeDecoder(), Slowness(pass_ms=15.0))

    assert duration_s(lambda: decoder.decode(batch)) >= 0.045
    assert decoder.decode(batch) == ("decoded", batch)


def test_it_is_what_the_model_is() -> None:
    model = slowed(Slowness(0.0))

    assert (model.vocab_size, model.max_positions) == (8, 16)
    assert model.head_token_ids is FakeModel.head_token_ids
