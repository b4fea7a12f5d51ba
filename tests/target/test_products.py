from pathlib import Path

import pytest
import torch
import vllm.model_executor.layers.utils as upstream
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.platforms import current_platform

from specray.models.sources import resolve
from specray.target import products
from specray.target.float_products import BFLOAT16, kind_for_this_processor
from tests.target.engine import FakeRouter, Job, specray_engine
from tests.target.identity import Tally, capped, scripted

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="for CPUs")
HAS_AMX = torch.cpu.get_capabilities().get("amx_bf16", False)
MOST_ROWS = 32
with_amx = pytest.mark.skipif(
    not HAS_AMX, reason="vLLM's products compute each row by itself with AMX only"
)
with_rows_by_themselves = pytest.mark.skipif(
    not HAS_AMX and kind_for_this_processor() != BFLOAT16, reason="AMX does, or products of ours"
)
PROMPTS = (
    "My sourdough keeps coming out flat, what am I doing wrong?",
    "The difference between a virus and a bacterium is",
    "Write a short story about a lighthouse keeper who is afraid of the dark.",
    "Two days in Lisbon with somebody who cannot walk far:",
    "def moving_average(values, window):",
)


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "check_cpu_sgl_kernel", upstream.check_cpu_sgl_kernel)
    if HAS_AMX:
        torch.cpu._init_amx()


def num_different(num_rows: int, n: int = 576, k: int = 576) -> int:
    """How many of a step's numbers differ from those of one row at a time."""
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
    layer.weight.data = (torch.randn(n, k, generator=generator) / 24).bfloat16()
    upstream.dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    differences = 0
    for _ in range(20 if n < 4096 else 2):
        x = torch.randn(num_rows, k, generator=generator).bfloat16()
        alone = torch.cat([layer.cpu_linear(row, layer.weight, None) for row in x.split(1)])
        differences += int((layer.cpu_linear(x, layer.weight, None) != alone).sum())
    return differences


@with_amx
@pytest.mark.parametrize("num_rows", [2, 5, 9, MOST_ROWS])
def test_a_row_comes_out_the_same_whatever_else_is_in_the_step(num_rows: int) -> None:
    without = num_different(num_rows)
    products.install()

    assert num_different(num_rows) == 0
    assert (without > 0) == (num_rows > 4)  # vLLM's own code: else this file is not needed


@with_amx
@pytest.mark.parametrize(
    ("n", "k"), [(960, 576), (3072, 576), (576, 1536), (49152, 576), (4096, 4096)]
)
def test_so_does_a_row_of_larger_products(n: int, k: int) -> None:
    products.install()

    for num_rows in (2, 6, 16, MOST_ROWS):
        assert num_different(num_rows, n, k) == 0


@pytest.mark.parametrize("has_amx", [True, False])
def test_products_in_other_numbers_are_left_to_vllm(
    monkeypatch: pytest.MonkeyPatch, *, has_amx: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: has_amx)
    products.install()

    for dtype in (torch.int8, torch.float16):
        assert upstream.check_cpu_sgl_kernel(576, 576, dtype) == has_amx
    assert not upstream.check_cpu_sgl_kernel(576, 576, torch.bfloat16)
    assert not upstream.check_cpu_sgl_kernel(8, 576, torch.bfloat16)


@pytest.mark.e2e
@pytest.mark.timeout(300)
@with_rows_by_themselves
def test_greedy_output_in_bfloat16_is_that_without_speculation(tmp_path: Path) -> None:
    for file in Path(resolve("bundled:smollm2-135m-instruct")).iterdir():
        (tmp_path / file.name).symlink_to(file)  # a tiny model's sums are too short to differ
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    params = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True)
    jobs = [Job(tuple(tokenizer(text).input_ids), params) for text in PROMPTS]
    most_rows = {"max_num_seqs": len(jobs), "max_num_batched_tokens": MOST_ROWS}
    with specray_engine(tmp_path, dtype="bfloat16", **most_rows) as engine:
        plain = engine.answers(jobs)
        tally = Tally(engine)
        with FakeRouter(engine.address, scripted(jobs, plain, noise=0.3)):
            alone = engine.answers(capped(jobs[:1]))
            together = engine.answers(capped(jobs, (None,)))  # up to 6 rows of each
        proposed, accepted = tally.take()

    assert alone == plain[:1]  # also where tokens are equally likely
    assert together == plain
    assert proposed > accepted > 150
