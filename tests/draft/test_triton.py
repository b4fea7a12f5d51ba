"""The kernels against what they stand for: on a GPU, or by `TRITON_INTERPRET=1` where Triton is."""

import os
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from specray.draft.addressed_cache import AddressedCache
from specray.draft.attention import CachedRow, NewTokens
from specray.draft.decoding import draw_by_torch, unpacked
from specray.draft.llama_layer import Norm, RmsNorm, Rotation
from specray.sampling.truncation import BatchSampling
from specray.types import SamplingSettings
from tests.draft import addressed

pytest.importorskip("triton", reason="Triton, which a CPU lacks")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("GPU", allow_module_level=True)
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    pytest.mark.timeout(900),  # of the interpreter
]

from specray.draft import triton_draw, triton_kernels  # noqa: E402


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


def test_norms() -> None:
    x, weight = numbers(6, 200), numbers(200)
    for part in (x, x.unflatten(0, (3, 2))[:, -1]):  # the last tokens of rows lie apart
        expected = RmsNorm(Norm(weight, 1e-5))(part)
        torch.testing.assert_close(triton_kernels.rms_norm(part, weight, 1e-5), expected)


@pytest.mark.parametrize("has_norm", [False, True])
def test_turns(*, has_norm: bool) -> None:
    rotary = SimpleNamespace(inv_freq=numbers(12).abs(), attention_scaling=1.3)
    turns = Rotation(rotary).at(torch.tensor([0, 5, 900], device=DEVICE))
    ours = numbers(3, 7, 24)
    theirs, weight = ours.clone(), numbers(4, 24) if has_norm else None
    triton_kernels.turn(ours, 4, turns, weight, 1e-6)
    if weight is not None:
        theirs[:, :4] = RmsNorm(Norm(weight, 1e-6))(theirs[:, :4])
    Rotation.turn(theirs[:, :4], turns)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gates() -> None:
    x = numbers(3, 2 * 1300)
    torch.testing.assert_close(triton_kernels.gated(x), silu(x[:, :1300]) * x[:, 1300:])


def rows_of(
    lengths: Sequence[tuple[int, int]], counts: Sequence[int], device: str
) -> list[CachedRow]:
    """Rows of so many tokens, and of them so many that only a branch has."""
    rows = []
    for (length, num_own), count in zip(lengths, counts, strict=True):
        states = torch.full((2, 4, length + count + 5, 24), torch.nan)
        states[:, :, : length - num_own] = numbers(2, 4, length - num_own, 24).cpu()
        tail = None
        if num_own:
            tail = torch.full((2, 4, num_own + count + 3, 24), torch.nan)
            tail[:, :, :num_own] = numbers(2, 4, num_own, 24).cpu()
            tail = tail.to(device)
        stop, num_shared = length + count, length - num_own if num_own else 0
        rows.append(CachedRow(states.to(device), length, stop, tail, num_shared))
    return rows


@pytest.mark.parametrize(
    ("lengths", "counts"),
    [
        ([(300, 0)], [1]),
        ([(0, 0)], [1]),
        ([(70, 0), (0, 0), (9, 0)], [1, 2, 2]),
        ([(90, 3), (40, 39), (64, 0)], [1, 1, 1]),
        ([(5, 0)] * 130, [1] * 130),  # no columns are shared out
        ([(3, 0), (130, 0)], [70, 20]),
    ],
)
def test_attends(lengths: list[tuple[int, int]], counts: list[int]) -> None:
    qkv = numbers(sum(counts), 10, 24)
    positions = torch.tensor(
        [n + i for (n, _), count in zip(lengths, counts, strict=True) for i in range(count)]
    )
    found = []
    for attend, device in ((triton_kernels.attend, DEVICE), (addressed.attend, "cpu")):
        rows = rows_of(lengths, counts, device)
        cache = AddressedCache.of(rows, attend)
        its = positions.to(device)
        cache.start_pass(NewTokens(its, its, counts, [row.stop for row in rows]))
        attended = cache.attend(qkv.to(device), 1).cpu()
        memory = [m.cpu() for row in rows for m in (row.states, row.tail) if m is not None]
        found.append([attended, *memory])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_row_beyond_its_stop_writes_nothing() -> None:
    (row,) = rows_of([(9, 0)], [1], DEVICE)
    cache = AddressedCache.of([row._replace(stop=9)], triton_kernels.attend)
    position = torch.tensor([9], device=DEVICE)
    cache.start_pass(NewTokens(position, position, [1], [10]))
    assert torch.isfinite(cache.attend(numbers(1, 10, 24), 1)).all()
    assert row.states[:, :, 9:].isnan().all()


@pytest.mark.parametrize(
    ("num_columns", "support"), [(50, 8), (50, 64), (50, 1), (3000, 32), (2500, 12)]
)
@pytest.mark.parametrize("is_named", [False, True])
def test_draws(num_columns: int, support: int, *, is_named: bool) -> None:
    rows = [
        SamplingSettings(),
        SamplingSettings(1.0),
        SamplingSettings(0.7, top_k=5),
        SamplingSettings(1.3, top_p=0.9),
        SamplingSettings(0.5, 40, 0.8),
        SamplingSettings(1.0, top_k=1),
        SamplingSettings(2.0, top_p=0.05),
        SamplingSettings(1.0, 7, 0.99),
    ]
    logits = 3 * numbers(len(rows), num_columns)
    names = torch.randperm(2 * num_columns)[:num_columns].to(DEVICE) if is_named else None
    for sampling in (
        BatchSampling.of(rows, logits.device),
        BatchSampling.of(rows[:1] * len(rows), logits.device),  # greedy, without distributions
    ):
        drawn = []
        for draw in (triton_draw.draw, draw_by_torch):
            generator = torch.Generator(DEVICE).manual_seed(3)
            drawn.append(unpacked([draw(logits, sampling, support, generator, names)]))
        ours, theirs = drawn
        torch.testing.assert_close(
            torch.tensor(ours.probabilities), torch.tensor(theirs.probabilities)
        )
        is_sure = theirs.probabilities > 1e-5  # the end of a distribution is a matter of rounding
        assert ours.supports[is_sure].tolist() == theirs.supports[is_sure].tolist()
        if support in (8, 32):  # of others the two draw random numbers of other shapes
            assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert ours.token_ids[0] == theirs.token_ids[0]


def test_tokens_that_are_ruled_out_say_nothing_of_others() -> None:
    logits = torch.full((1, 3000), float("-inf"), device=DEVICE)
    logits[:, 1500:1503] = torch.tensor([1.0, 3.0, 2.0])  # all there is in the other blocks is none
    sampling = BatchSampling.of([SamplingSettings(1.0)], logits.device)
    drawn = unpacked([triton_draw.draw(logits, sampling, 8, torch.Generator(DEVICE), None)])
    assert drawn.supports[0, 0, :3].tolist() == [1501, 1502, 1500]
    assert drawn.probabilities[0, 0].sum() == pytest.approx(1.0)


def test_kernels_are_compiled_where_no_row_is_read_or_written() -> None:
    for heads in ((6, 2, 24), (4, 4, 64)):
        triton_kernels.prepare(torch.device(DEVICE), torch.float32, *heads)


def test_draws_take_the_first_of_the_likeliest() -> None:
    logits = torch.zeros(2, 2500, device=DEVICE)
    logits[:, 1100:2200] = 1.0
    sampling = BatchSampling.of([SamplingSettings(), SamplingSettings(1.0)], logits.device)
    drawn = unpacked([triton_draw.draw(logits, sampling, 8, torch.Generator(DEVICE), None)])
    assert drawn.token_ids[0] == 1100
    assert drawn.supports[0, 0].tolist() == list(range(1100, 1108))
    reference = draw_by_torch(logits, sampling, 8, torch.Generator(DEVICE), None)
    assert unpacked([reference]).token_ids[0] == 1100
