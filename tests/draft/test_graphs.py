"""Recordings are real on a GPU only; here they repeat the same computation on the same tensors."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from specray.config import ModelDraftConfig
from specray.draft import graphs
from specray.draft.attention import CachedRow
from specray.draft.decoding import Batch, Decoder, PlainDecoder, draw_by_torch
from specray.draft.graphs import GraphedDecoder
from specray.draft.llama import LlamaPass
from specray.draft.model import ModelProposer
from specray.models.cuda import Replay
from specray.types import Commit, OpenSession, SamplingSettings
from tests.draft import addressed

VOCAB_SIZE = 60
SUPPORT = 8
ALPHA = 1e-4  # chance that an exact sampler fails a test, were its seed not fixed
GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(1.0, top_p=0.95)
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU"))
RECORD_AT = 2


@pytest.fixture(autouse=True)
def few_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_RECORD_AT", RECORD_AT)


class Recorder:
    """Counts recordings and replays. As a graph's, its output always lies in the same memory."""

    def __init__(self) -> None:
        self.num_recordings = self.num_replays = 0

    def record(self, run: Callable[[], None]) -> Replay:
        self.num_recordings += 1
        run()
        cells = dict(zip(run.__code__.co_freevars, run.__closure__, strict=True))
        outputs = cells["outputs"].cell_contents
        (output,) = outputs

        def replay() -> None:
            self.num_replays += 1
            run()
            outputs[:] = [output.copy_(outputs[0])]

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
    return LlamaPass(AutoModelForCausalLM.from_config(config).eval().to(device))


def plain_decoder(device: str = "cpu", kind: type[PreTrainedConfig] = LlamaConfig) -> PlainDecoder:
    return PlainDecoder(make_model(device, kind), SUPPORT, torch.Generator(device).manual_seed(0))


def graphed_decoder(
    recorder: Recorder | None = None,
    device: str = "cpu",
    kind: type[PreTrainedConfig] = LlamaConfig,
    record: Callable[[Callable[[], None]], Replay] | None = None,
) -> GraphedDecoder:
    model, generator = make_model(device, kind), torch.Generator(device).manual_seed(0)
    if device == "cuda":
        from specray.draft.triton_draw import draw

        return GraphedDecoder(model, model.attend, draw, SUPPORT, generator)
    model.attend = addressed.attend
    record = record or (recorder or Recorder()).record
    return GraphedDecoder(model, model.attend, draw_by_torch, SUPPORT, generator, record)


class Row(NamedTuple):
    length: int
    count: int = 1  # tokens to compute in the first pass
    depth: int = 3
    sampling: SamplingSettings = GREEDY
    num_own: int = 0  # tokens that only a branch has
    seed: int | None = None  # rows of the same seed are alike; by default none are


def numbers(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch_of(rows: Sequence[Row], device: str = "cpu") -> Batch:
    """Rows behind known keys and values; what lies beyond their stop is NaN."""
    cached, token_ids = [], []
    for index, row in enumerate(rows):
        seed = index if row.seed is None else row.seed
        stop = row.length + row.count + row.depth - 1
        states = torch.full((3, 4, stop + 3, 8), torch.nan)
        states[:, :, : row.length] = numbers((3, 4, row.length, 8), seed)
        tail, num_shared = None, row.length - row.num_own
        if row.num_own:
            tail = torch.full((3, 4, stop - num_shared + 3, 8), torch.nan)
            tail[:, :, : row.num_own] = states[:, :, num_shared : row.length]
            states[:, :, num_shared:] = torch.nan
            tail = tail.to(device)
        states = states.to(device)
        cached.append(CachedRow(states, row.length, stop, tail, num_shared if row.num_own else 0))
        token_ids.append([(7 * seed + i) % VOCAB_SIZE for i in range(row.count)])
    samplings, depths = [row.sampling for row in rows], [row.depth for row in rows]
    return Batch(cached, token_ids, samplings, depths, shows_distributions=True)


def states_of(batch: Batch) -> list[Tensor]:
    return [part.cpu() for row in batch.rows for part in (row.states, row.tail) if part is not None]


def assert_same(decoder: Decoder, other: Decoder, rows: Sequence[Row], device: str = "cpu") -> None:
    """Tokens, what they are from, and all memory, as far as somebody may read it."""
    batches = batch_of(rows, device), batch_of(rows, device)
    ours, theirs = decoder.decode(batches[0]), other.decode(batches[1])
    for index, row in enumerate(rows):
        at = index, slice(row.depth)
        assert ours.token_ids[at].tolist() == theirs.token_ids[at].tolist()
        np.testing.assert_allclose(ours.probabilities[at], theirs.probabilities[at], atol=1e-4)
    for own, its in zip(states_of(batches[0]), states_of(batches[1]), strict=True):
        torch.testing.assert_close(own, its, rtol=1e-4, atol=1e-4, equal_nan=True)


ROWS = {
    "one": [Row(5)],
    "ragged": [Row(40, 1, 4), Row(3, 2, 4), Row(300, 2, 3), Row(12, 1, 2), Row(30, 2, 1)],
    "padded": [Row(3, 1 + index % 2) for index in range(9)],
    "shallow": [Row(3)] * 9 + [Row(4, depth=1)],  # computed with the others, but not written
    "branches": [Row(20, 1, 1), Row(20, 1, 1, num_own=4), Row(9, 1, 1, num_own=1)],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_it_decodes_what_the_plain_one_does(
    rows: list[Row], device: str, kind: type[PreTrainedConfig]
) -> None:
    recorder = Recorder()
    graphed = graphed_decoder(recorder, device, kind)
    for _ in range(RECORD_AT + 1):  # not recorded, recorded, and over what that has left
        assert_same(graphed, plain_decoder(device, kind), rows, device)
    assert device == "cuda" or recorder.num_replays == 2 * rows[0].depth


def test_a_replay_reads_its_own_batch() -> None:
    recorder = Recorder()
    graphed, plain = graphed_decoder(recorder), plain_decoder()
    for length in (5, 9, 70, 3, 300):  # where columns were part of a shape, these were three
        assert_same(graphed, plain, [Row(length), Row(length + 1)])
    assert recorder.num_recordings == 1


def test_rows_that_have_gone_are_written_no_more() -> None:
    graphed = graphed_decoder()
    for _ in range(RECORD_AT):
        graphed.decode(batch_of([Row(5)] * 10))
    gone = batch_of([Row(5)] * 10)
    graphed.decode(gone)
    last = gone.rows[9].states
    last.fill_(torch.nan)
    graphed.decode(batch_of([Row(30)] * 9))  # of the same shape
    assert last.isnan().all()


def test_settings_mix_in_a_recording() -> None:
    recorder = Recorder()
    graphed, plain = graphed_decoder(recorder), plain_decoder()
    first = SamplingSettings(1.5, top_k=1)  # leaves the likeliest
    mixed = [GREEDY, first, SamplingSettings(0.7, top_k=3), SamplingSettings(1.3, top_p=0.4)]
    for settings in [mixed] * RECORD_AT + [mixed[::-1], [first] * 4, [GREEDY] * 4]:
        rows = [Row(9, depth=2, sampling=sampling) for sampling in settings]
        ours, theirs = graphed.decode(batch_of(rows)), plain.decode(batch_of(rows))
        np.testing.assert_allclose(ours.probabilities[:, 0], theirs.probabilities[:, 0], atol=1e-5)
        for index, sampling in enumerate(settings):
            if sampling in (GREEDY, first):
                assert ours.token_ids[index, 0] == theirs.token_ids[index, 0]
            assert ours.token_ids[index, 1] in ours.supports[index, 1]
    assert recorder.num_recordings == 1


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_every_replay_draws_afresh_from_what_it_ships(device: str) -> None:
    graphed = graphed_decoder(device=device)
    rows = [Row(9, depth=2, sampling=SAMPLED, seed=1)] * 32
    decoded = [graphed.decode(batch_of(rows, device)) for _ in range(40)][RECORD_AT:]
    drawn = np.stack([each.token_ids for each in decoded])  # [replays, rows, depth]
    assert len({each.tobytes() for each in drawn}) == len(drawn)
    q, used = decoded[0].probabilities[0, 0], decoded[0].probabilities[0, 0] > 0
    counts = np.array([(drawn[:, :, 0] == i).sum() for i in decoded[0].supports[0, 0][used]])
    assert counts.sum() == drawn[:, :, 0].size
    assert (
        chisquare(counts, counts.sum() * q[used].astype(float) / q.sum(dtype=float)).pvalue > ALPHA
    )
    # What follows differs from row to row; how often it is the likeliest does not depend on that.
    hits = sum((d.token_ids[:, 1] == d.supports[:, 1, 0]).sum() for d in decoded)
    p = np.concatenate([d.probabilities[:, 1, 0] for d in decoded])
    assert abs(hits - p.sum()) < 3.9 * np.sqrt((p * (1 - p)).sum())
    likeliest = drawn[:, :, 0] == decoded[0].supports[0, 0, 0]
    assert_independent(likeliest[:-1], likeliest[1:])  # one replay and the next
    assert_independent(likeliest[:, :-1], likeliest[:, 1:])  # one row and the next


def assert_independent(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> None:
    table = [[np.sum((one == a) & (other == b)) for b in (False, True)] for a in (False, True)]
    assert chi2_contingency(table).pvalue > ALPHA


def test_draws_do_not_depend_on_those_before() -> None:
    """A random number that two passes shared would tie the second token to the first."""
    graphed = graphed_decoder()
    flat = SamplingSettings(100.0, top_k=2)  # of two tokens, each as likely whatever precedes it
    rows = [Row(9, depth=4, sampling=flat, seed=1)] * 32
    decoded = [graphed.decode(batch_of(rows)) for _ in range(25)][RECORD_AT:]
    first = np.stack([each.token_ids == each.supports[:, :, 0] for each in decoded])
    for depth in range(3):
        assert_independent(first[:, :, depth], first[:, :, depth + 1])


def test_recorded_once_met_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_RECORD_AT", 4)
    recorder = Recorder()
    graphed = graphed_decoder(recorder)
    for num_rows in (1, 2, 3) * 3:
        graphed.decode(batch_of([Row(5, depth=1)] * num_rows))
    assert recorder.num_recordings == 0
    graphed.decode(batch_of([Row(50, depth=1)] * 2))
    assert (recorder.num_recordings, recorder.num_replays) == (1, 1)


def test_nothing_is_replayed_before_all_passes_are_recorded() -> None:
    recorder = Recorder()
    graphed = graphed_decoder(recorder)
    for _ in range(RECORD_AT):
        graphed.decode(batch_of([Row(5)]))
    assert (recorder.num_recordings, recorder.num_replays) == (1, 3)
    graphed.decode(batch_of([Row(5, count=2)]))
    assert (recorder.num_recordings, recorder.num_replays) == (1, 3)


def test_a_recording_that_was_dropped_must_pay_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST_RECORDINGS", 1)
    recorder = Recorder()
    graphed = graphed_decoder(recorder)
    for num_rows in [1] * RECORD_AT + [2] * RECORD_AT + [1] * (RECORD_AT - 1):
        graphed.decode(batch_of([Row(5, depth=1)] * num_rows))
    assert recorder.num_recordings == 2
    graphed.decode(batch_of([Row(5, depth=1)]))
    assert recorder.num_recordings == 3


def test_the_recordings_longest_unused_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST_RECORDINGS", 2)
    recorder = Recorder()
    graphed, plain = graphed_decoder(recorder), plain_decoder()
    for num_rows in (1, 1, 2, 2, 1, 3, 3, 1):  # 3 takes the place of 2
        assert_same(graphed, plain, [Row(5, depth=1)] * num_rows)
    assert recorder.num_recordings == 3
    assert len(graphed._recordings) == 2


def test_a_number_that_is_none_stays_in_its_session() -> None:
    graphed, plain = graphed_decoder(), plain_decoder()
    for _ in range(RECORD_AT):
        spoilt = batch_of([Row(9), Row(9)])
        spoilt.rows[1].states.fill_(torch.nan)
        decoded = graphed.decode(spoilt)
        expected = plain.decode(batch_of([Row(9)]))
        assert decoded.token_ids[0].tolist() == expected.token_ids[0].tolist()
    assert_same(graphed, plain, [Row(9), Row(5)])


def test_what_is_long_or_scored_in_several_places_is_left_to_the_plain_decoder() -> None:
    recorder = Recorder()
    graphed, plain = graphed_decoder(recorder), plain_decoder()
    for _ in range(RECORD_AT):
        assert_same(graphed, plain, [Row(5, count=3)])
    for _ in range(RECORD_AT):
        scored = batch_of([Row(5, count=2, depth=1)])._replace(num_scored=[2])
        again = batch_of([Row(5, count=2, depth=1)])._replace(num_scored=[2])
        decoded = graphed.decode(scored)
        assert decoded.token_ids.tolist() == plain.decode(again).token_ids.tolist()
        assert decoded.token_ids.shape == (2, 1)
    many = [Row(3, depth=1)] * (graphs._MOST_ROWS + 1)
    for _ in range(RECORD_AT):
        graphed.decode(batch_of(many))
    assert recorder.num_recordings == 0


class TritonError(Exception):
    """As Triton's own, which are of no kind that Python has."""


@pytest.mark.parametrize("num_good", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError("not permitted"), TritonError("not permitted")])
def test_a_recording_that_fails_costs_speed_only(
    caplog: pytest.LogCaptureFixture, error: Exception, num_good: int
) -> None:
    """Before it has run or after it, and where others have been recorded."""
    recorder = Recorder()

    def fail(run: Callable[[], None]) -> Replay:
        if recorder.num_recordings < num_good:
            return recorder.record(run)
        run()
        raise error

    graphed, plain = graphed_decoder(record=fail), plain_decoder()
    with caplog.at_level(logging.WARNING):
        for _ in range(RECORD_AT + 2):
            assert_same(graphed, plain, [Row(5, 2), Row(9)])
    (record,) = caplog.records
    assert "not permitted" in record.message
    assert recorder.num_replays == 0


def test_memory_that_is_short_for_once_is_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder, is_short = Recorder(), True

    def record(run: Callable[[], None]) -> Replay:
        if is_short:
            raise torch.OutOfMemoryError
        return recorder.record(run)

    graphed, plain = graphed_decoder(record=record), plain_decoder()
    for _ in range(RECORD_AT):
        assert_same(graphed, plain, [Row(5), Row(9)])
    is_short = False
    for _ in range(RECORD_AT):
        assert recorder.num_replays == 0  # it must pay anew
        assert_same(graphed, plain, [Row(5), Row(9)])
    assert recorder.num_replays > 0
    assert not caplog.text


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_draft_proposes_the_same_with_it(device: str) -> None:
    config = ModelDraftConfig(model="x", max_tokens=2048, max_sessions=4)
    recorder = Recorder()
    graphed = graphed_decoder(recorder, device)
    answers = []
    for model, decoder in (
        (make_model(device), plain_decoder(device)),
        (graphed._model, graphed),
    ):
        generator = torch.Generator(device).manual_seed(0)
        proposer = ModelProposer(model, config, generator, clock=lambda: 0.0, decoder=decoder)
        prompts = [[(7 * i + length) % VOCAB_SIZE for i in range(length)] for length in (4, 30, 11)]
        for session_id, prompt in enumerate(prompts):
            proposer.open(OpenSession(session_id, tuple(prompt), len(prompt), GREEDY, 3))
        answers.append([])
        for turn in range(4):
            for session_id, prompt in enumerate(prompts):
                proposer.commit(Commit(session_id, len(prompt), (7 + turn,), 3, 0))
                prompt.append(7 + turn)
            answers[-1] += [p.token_ids for p in proposer.propose(range(len(prompts)))]
            for _ in range(3):
                proposer.work()  # ahead, in between
    assert answers[0] == answers[1]
    assert sum(len(token_ids) == 3 for token_ids in answers[0]) >= 3
    assert device == "cuda" or recorder.num_replays > 6
