"""Recordings are real on a GPU only; here they repeat the same computation on the same tensors."""

import logging
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from specray.config import ModelDraftConfig
from specray.draft import graphs
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.batch_cache import BatchCache
from specray.draft.graphs import GraphedModel
from specray.draft.llama import LlamaPass
from specray.draft.model import ModelProposer
from specray.models.cuda import Replay
from specray.types import Commit, OpenSession, SamplingSettings

VOCAB_SIZE = 60
MOST_TOKENS = 2048
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU"))


RECORD_AT = 2


@pytest.fixture(autouse=True)
def few_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_RECORD_AT", RECORD_AT)


class Recorder:
    """Counts recordings and replays. As a graph, it keeps alive nothing that it was recorded on."""

    def __init__(self) -> None:
        self.num_recordings = self.num_replays = 0

    def record(self, run: Callable[[], None]) -> Replay:
        self.num_recordings += 1
        run()
        names = run.__code__.co_freevars
        cells = dict(zip(names, (cell.cell_contents for cell in run.__closure__), strict=True))
        model, new, output = cells["self"]._model, cells["new"], cells["output"]
        cache = weakref.ref(cells["cache"])

        def replay() -> None:
            self.num_replays += 1
            assert cache() is not None, "the recording reads memory that has been freed"
            output.copy_(model.next_logits(new, cache()))

        return replay


def make_model(device: str = "cpu", kind: type[PreTrainedConfig] = LlamaConfig) -> LlamaPass:
    torch.manual_seed(5)
    config = kind(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2000,
        initializer_range=0.3,
    )
    model = LlamaPass(AutoModelForCausalLM.from_config(config).eval().to(device))
    model.copies_rows = True  # as on a GPU
    return model


def text(length: int, seed: int = 0) -> list[int]:
    return torch.randint(
        VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


def prefilled(model: LlamaPass, length: int, room: int, seed: int) -> CachedRow:
    num_layers, num_heads, dim = model.layout
    states = torch.empty(num_layers, 2 * num_heads, room, dim, device=model.device)
    cache = BatchCache([CachedRow(states, 0, length)])
    token_ids = torch.tensor(text(length, seed), device=model.device)
    positions = torch.arange(length, device=model.device)
    model.next_logits(NewTokens(token_ids, positions, [length], [length]), cache)
    cache.store()
    return CachedRow(states, length, room)


def run(model: LlamaPass | GraphedModel, plain: LlamaPass, lengths: list[int]) -> list[Tensor]:
    """Three passes, of which the last has fewer rows; logits, and the states that they leave."""
    rows = [prefilled(plain, length, length + 4, seed) for seed, length in enumerate(lengths)]
    counts = [1 + index % 2 for index in range(len(rows))]
    positions = [
        position
        for row, count in zip(rows, counts, strict=True)
        for position in range(row.num_cached, row.num_cached + count)
    ]
    new = NewTokens(
        torch.tensor(text(len(positions), seed=9), device=plain.device),
        torch.tensor(positions, device=plain.device),
        counts,
        [row.num_cached + count for row, count in zip(rows, counts, strict=True)],
    )
    cache = model.make_cache(rows)
    results = []
    for num_rows in (len(rows), len(rows), max(1, len(rows) - 1)):
        logits = model.next_logits(new, cache)
        results.append(logits)
        new = new.followed_by(logits[:num_rows].argmax(1))
    cache.store()
    ends = [length + count + 1 for length, count in zip(lengths, counts, strict=True)]
    return results + [row.states[:, :, :end] for row, end in zip(rows, ends, strict=True)]


@pytest.mark.parametrize("lengths", [[5], [300, 7], [40, 3, 9, 12, 30], [3] * 9])
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_it_computes_what_the_model_does(
    lengths: list[int], device: str, kind: type[PreTrainedConfig]
) -> None:
    model = make_model(device, kind)
    graphed = GraphedModel(model, 16 * MOST_TOKENS, Recorder().record if device == "cpu" else None)
    for _ in range(RECORD_AT + 1):  # not recorded, recorded, and over what that has left
        torch.testing.assert_close(
            run(graphed, model, lengths), run(model, model, lengths), rtol=1e-4, atol=1e-4
        )


def test_batches_of_like_size_share_a_recording() -> None:
    model, recorder = make_model(), Recorder()
    graphed = GraphedModel(model, MOST_TOKENS, recorder.record)
    for length in (5, 17, 100, 240):
        run(graphed, model, [length, length])
    assert recorder.num_recordings == 2  # of one token a row, and of two
    # All but the first pass of each.
    assert recorder.num_replays == 4 * 3 - 2 * (RECORD_AT - 1)


def one_pass(graphed: GraphedModel, model: LlamaPass, length: int) -> None:
    rows = [prefilled(model, length, length + 2, seed=1)]
    new = NewTokens(torch.tensor([3]), torch.tensor([length]), [1], [length + 1])
    graphed.next_logits(new, graphed.make_cache(rows))


def test_a_shape_is_recorded_once_that_would_have_paid() -> None:
    model, recorder = make_model(), Recorder()
    graphed = GraphedModel(model, 16 * MOST_TOKENS, recorder.record)
    for _ in range(RECORD_AT - 1):
        for length in (5, 300, 600, 1200):
            one_pass(graphed, model, length)
    assert recorder.num_recordings == 0
    one_pass(graphed, model, 300)
    assert (recorder.num_recordings, recorder.num_replays) == (1, 1)


def test_a_recording_that_was_dropped_must_pay_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST_RECORDINGS", 1)
    model, recorder = make_model(), Recorder()
    graphed = GraphedModel(model, 16 * MOST_TOKENS, recorder.record)
    for length in [5] * RECORD_AT + [300] * RECORD_AT + [5] * (RECORD_AT - 1):
        one_pass(graphed, model, length)
    assert recorder.num_recordings == 2
    one_pass(graphed, model, 5)
    assert recorder.num_recordings == 3


def test_the_recordings_longest_unused_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST_RECORDINGS", 2)
    model, recorder = make_model(), Recorder()
    graphed = GraphedModel(model, 16 * MOST_TOKENS, recorder.record)
    for lengths in ([5], [5, 5], [5, 5, 5]) * 2:
        torch.testing.assert_close(
            run(graphed, model, lengths), run(model, model, lengths), rtol=1e-4, atol=1e-4
        )
    assert len(graphed._recordings) == 2


def test_a_number_that_is_none_stays_in_its_session() -> None:
    model = make_model()
    graphed = GraphedModel(model, MOST_TOKENS, Recorder().record)
    row = prefilled(model, 9, 20, seed=1)
    row.states.fill_(float("nan"))
    new = NewTokens(torch.tensor([3]), torch.tensor([9]), [1], [10])
    assert graphed.next_logits(new, graphed.make_cache([row])).isnan().any()
    for _ in range(3):
        assert all(torch.isfinite(result).all() for result in run(graphed, model, [5]))


def test_long_passes_and_large_batches_are_left_to_the_model() -> None:
    model, recorder = make_model(), Recorder()
    graphed = GraphedModel(model, MOST_TOKENS, recorder.record)
    run(graphed, model, [300] * 8)
    row = prefilled(model, 5, 20, seed=1)
    new = NewTokens(torch.tensor(text(3)), torch.arange(5, 8), [3], [8])
    expected = model.next_logits(new, model.make_cache([row]))
    torch.testing.assert_close(graphed.next_logits(new, graphed.make_cache([row])), expected)
    assert recorder.num_recordings == 0


def test_a_recording_that_can_not_begin_costs_speed_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing")

    model = make_model()
    graphed = GraphedModel(model, MOST_TOKENS, fail)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            torch.testing.assert_close(
                run(graphed, model, [5, 9]), run(model, model, [5, 9]), rtol=1e-4, atol=1e-4
            )
    (record,) = caplog.records
    assert "not permitted when stream is capturing" in record.message


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_draft_proposes_the_same_with_it(device: str) -> None:
    config = ModelDraftConfig(model="x", max_tokens=MOST_TOKENS, max_sessions=4)
    model, recorder = make_model(device), Recorder()
    record = recorder.record if device == "cpu" else None
    answers = []
    for drafter in (model, GraphedModel(model, MOST_TOKENS, record)):
        generator = torch.Generator(device).manual_seed(0)
        proposer = ModelProposer(drafter, config, generator, clock=lambda: 0.0)
        prompts = [text(length, length) for length in (4, 30, 11)]
        for session_id, prompt in enumerate(prompts):
            greedy = SamplingSettings()
            proposer.open(OpenSession(session_id, tuple(prompt), len(prompt), greedy, 3))
        answers.append([])
        for turn in range(3):
            for session_id, prompt in enumerate(prompts):
                proposer.commit(Commit(session_id, len(prompt), (7 + turn,), 3, 0))
                prompt.append(7 + turn)
            answers[-1] += [p.token_ids for p in proposer.propose(range(len(prompts)))]
            for _ in range(3):
                proposer.work()  # ahead, in between
    assert answers[0] == answers[1]
    assert sum(len(token_ids) == 3 for token_ids in answers[0]) >= 3
    assert record is None or recorder.num_replays > 6
