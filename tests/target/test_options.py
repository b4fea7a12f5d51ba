"""Sampling options with speculation: the same as without."""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from vllm import RequestOutput, SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from tests.target.drafts import Scripted
from tests.target.engine import Engine, FakeRouter, Job, plain_engine, run_jobs, specray_engine
from tests.target.identity import Tally, capped, prompts, scripted
from tests.target.tiny_model import CHARS, EOS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PROMPTS = prompts(4, 20)
NUM_TOKENS = 60
SMALL = {"max_num_seqs": 32, "num_gpu_blocks_override": 200}


def greedy(**options: object) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True} | options
    )


def tokens(output: RequestOutput) -> list[list[int]]:
    return [list(completion.token_ids) for completion in output.outputs]


def first_tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [tokens(output)[0] for output in outputs]


LOGIT_BIAS = dict.fromkeys(range(1, 96, 3), -8.0)
PLAIN_ONLY = {  # vLLM refuses these for an engine that may speculate
    "logit_bias": greedy(logit_bias=LOGIT_BIAS),
    "min_p": greedy(temperature=1.0, min_p=0.2, seed=1),
    "logit_bias and min_p": greedy(temperature=1.0, logit_bias=LOGIT_BIAS, min_p=0.1, seed=2),
}


@pytest.fixture(scope="module")
def plain(tiny_folder: Path) -> dict[str, list[list[int]]]:
    """What vLLM answers when no speculation is configured, by option."""
    with plain_engine(tiny_folder, **SMALL) as engine:
        return {
            name: first_tokens(run_jobs(engine, [Job(prompt, params) for prompt in PROMPTS]))
            for name, params in {"none": greedy(), **PLAIN_ONLY}.items()
        }


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, plain: object) -> Iterator[Engine]:
    with specray_engine(tiny_folder, **SMALL) as engine:
        yield engine


def both(engine: Engine, params: SamplingParams) -> tuple[list[RequestOutput], list[RequestOutput]]:
    """Without speculation, and with a draft that is mostly right; speculation must happen."""
    jobs = [Job(prompt, params) for prompt in PROMPTS]
    expected = engine.run(jobs)
    tally = Tally(engine)
    with FakeRouter(engine.address, scripted(jobs, first_tokens(expected), noise=0.1)):
        got = engine.run(capped(jobs, (None, 3)))
    assert tally.take()[1] > 0
    return expected, got


def test_without_options_it_is_what_vllm_alone_answers(
    engine: Engine, plain: dict[str, list[list[int]]]
) -> None:
    expected, got = both(engine, greedy())
    assert first_tokens(expected) == first_tokens(got) == plain["none"]


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 1.0},
        {"presence_penalty": 1.5},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"bad_words": list("abcdefghijklmnopqrstuvwxyz")},
        {"allowed_token_ids": list(range(1, 96, 2))},
        {"stop_token_ids": [7, 8, 9], "min_tokens": 20},
        {"stop_token_ids": list(range(10, 20)), "ignore_eos": False},
    ],
    ids=lambda options: "+".join(options),
)
def test_greedy_options(
    engine: Engine, plain: dict[str, list[list[int]]], options: dict[str, object]
) -> None:
    expected, got = both(engine, greedy(**options))
    assert first_tokens(expected) == first_tokens(got)
    assert first_tokens(expected) != plain["none"]  # the option does something
    for one, other in zip(expected, got, strict=True):
        assert one.outputs[0].finish_reason == other.outputs[0].finish_reason
        assert one.outputs[0].stop_reason == other.outputs[0].stop_reason


def test_an_answer_may_end_as_soon_as_it_is_long_enough(engine: Engine) -> None:
    """Whatever depth reaches there: every other token ends an answer of at least 20."""
    params = greedy(min_tokens=20, stop_token_ids=list(range(1, 96, 2)))
    jobs = [Job(prompt, params) for prompt in PROMPTS for _ in range(5)]
    expected = engine.run(jobs)
    assert {len(answer) for answer in first_tokens(expected)} != {NUM_TOKENS}
    tally = Tally(engine)
    for noise in (0.0, 0.1):
        with FakeRouter(engine.address, scripted(jobs, first_tokens(expected), noise=noise)):
            got = engine.run(capped(jobs, (1, 2, 3, 4, 5)))
        assert first_tokens(got) == first_tokens(expected)
    assert tally.take()[1] > 0


def test_log_probabilities_of_chosen_tokens(engine: Engine) -> None:
    """vLLM's rejection sampler can't tell them: beside them nobody speculates."""
    chosen = [Job(prompt, greedy(logprob_token_ids=[3, 5, 8])) for prompt in PROMPTS[:2]]
    usual = [Job(prompt, greedy(logprobs=2)) for prompt in PROMPTS[2:]]
    later = [Job(prompt, greedy(), start=2 * NUM_TOKENS) for prompt in PROMPTS]
    jobs = [*chosen, *usual, *later]
    expected = engine.run(jobs)
    engine.take_steps()
    tally = Tally(engine)
    with FakeRouter(engine.address, scripted(jobs, first_tokens(expected), noise=0.1)):
        got = engine.run(capped(jobs, (None,)))
    assert tally.take()[1] > 0  # once those have their answers
    assert first_tokens(got) == first_tokens(expected)
    # Those with `logprobs` get no likeliest tokens in a step with the others, by vLLM alone too.
    for one, other in zip(expected[:2], got[:2], strict=True):
        pairs = zip(one.outputs[0].logprobs, other.outputs[0].logprobs, strict=True)
        for plain, speculated in pairs:
            assert values(plain) == pytest.approx(values(speculated), abs=1e-4)
            assert set(plain) == set(speculated) >= {3, 5, 8}


def test_bad_words_of_several_tokens(engine: Engine, plain: dict[str, list[list[int]]]) -> None:
    words = [
        "".join(CHARS[t - 1] for t in answer[i : i + 2] if t != EOS)
        for answer in plain["none"]
        for i in range(10, 50, 10)
    ]
    expected, got = both(engine, greedy(bad_words=words))
    assert first_tokens(expected) == first_tokens(got)
    assert not any(
        one == other for one, other in zip(first_tokens(got), plain["none"], strict=True)
    )


def test_logprobs_of_output_and_prompt(engine: Engine) -> None:
    for one, other in zip(*both(engine, greedy(logprobs=5, prompt_logprobs=2)), strict=True):
        assert tokens(one) == tokens(other)
        for name in ("logprobs", "prompt_logprobs"):
            expected, got = (
                getattr(o.outputs[0] if name == "logprobs" else o, name) for o in (one, other)
            )
            assert len(expected) == len(got) > 10
            for plain, speculated in zip(expected, got, strict=True):
                assert values(plain) == pytest.approx(values(speculated), abs=1e-4)


def values(logprobs: dict[int, object] | None) -> dict[int, float]:
    return {token_id: entry.logprob for token_id, entry in (logprobs or {}).items()}


@pytest.mark.parametrize("name", PLAIN_ONLY)
def test_what_vllm_refuses_is_served_at_depth_0(
    engine: Engine, plain: dict[str, list[list[int]]], name: str
) -> None:
    """In one batch with requests that do speculate."""
    jobs = [Job(prompt, PLAIN_ONLY[name]) for prompt in PROMPTS]
    others = [Job(prompt, greedy()) for prompt in PROMPTS]
    draft = scripted(others, plain["none"], noise=0.1)
    engine.take_steps()
    with FakeRouter(engine.address, draft):
        outputs = engine.run(capped([*jobs, *others], (None,)))
    assert first_tokens(outputs) == plain[name] + plain["none"]
    assert plain[name] != plain["none"]
    mixed = [step.depths for step in engine.take_steps() if any(step.depths.values())]
    ids = tuple(f"{output.request_id}-" for output in outputs[: len(jobs)])
    verified = [d for depths in mixed for r, d in depths.items() if r.startswith(ids)]
    assert verified
    assert set(verified) == {0}


def test_several_answers_to_one_request(engine: Engine) -> None:
    """With top_k 1 sampling has one outcome, so that they can be compared."""
    options = {"temperature": 1.0, "top_k": 1, "seed": 1}
    params = greedy(n=3, output_kind=RequestOutputKind.FINAL_ONLY, **options)
    expected, got = both(engine, params)
    assert [tokens(output) for output in expected] == [tokens(output) for output in got]
    assert all(len(output.outputs) == 3 for output in got)


def test_stop_strings_end_the_tokens_where_they_end_the_text(
    engine: Engine, plain: dict[str, list[list[int]]]
) -> None:
    stops = ["".join(CHARS[t - 1] for t in answer[30:33] if t != EOS) for answer in plain["none"]]
    for include in (False, True):
        params = greedy(stop=stops, include_stop_str_in_output=include, logprobs=0)
        for one, other in zip(*both(engine, params), strict=True):
            expected, got = one.outputs[0], other.outputs[0]
            assert expected.finish_reason == "stop"
            assert (expected.text, expected.stop_reason) == (got.text, got.stop_reason)
            assert expected.token_ids == got.token_ids
            assert len(got.logprobs) == len(got.token_ids)


STRUCTURES = {
    "regex": StructuredOutputsParams(regex="[a-f]{20,25}=[0-9]{10,15};(yes|no)"),
    "choice": StructuredOutputsParams(choice=["a long answer to choose", "a long one", "short"]),
    "json": StructuredOutputsParams(
        json={
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "sizes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
            },
            "required": ["name", "sizes"],
            "additionalProperties": False,
        },
        disable_any_whitespace=True,
    ),
}


def is_valid(kind: str, text: str) -> bool:
    structure = STRUCTURES[kind]
    if kind == "regex":
        return re.fullmatch(structure.regex, text) is not None
    if kind == "choice":
        return text in structure.choice
    return set(json.loads(text)) == {"name", "sizes"}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_structured_output_greedy(engine: Engine, kind: str) -> None:
    params = greedy(structured_outputs=STRUCTURES[kind], ignore_eos=False, max_tokens=200)
    expected, got = both(engine, params)
    assert first_tokens(expected) == first_tokens(got)
    assert all(is_valid(kind, output.outputs[0].text) for output in got)


def test_what_a_grammar_forbids_counts_as_rejected(engine: Engine) -> None:
    """Else waiting for a draft that knows no grammar would seem to pay for ever."""
    structure = StructuredOutputsParams(choice=["a long answer to choose", "a long one", "short"])
    params = greedy(structured_outputs=structure, ignore_eos=False, max_tokens=200)
    forbidden = Scripted()  # proposes nothing but the token 0, which ends an answer
    tally = Tally(engine)
    with FakeRouter(engine.address, forbidden):
        engine.run(capped([Job(prompt, params) for prompt in PROMPTS], (3,)))
    proposed, accepted = tally.take()

    assert forbidden.num_proposed > 2 * len(PROMPTS)
    assert proposed - accepted > 2  # on a busy machine some come too late for their step


@pytest.mark.parametrize("kind", STRUCTURES)
def test_structured_output_sampled(engine: Engine, kind: str) -> None:
    """A draft that repeats another sample's answer: partly right, mostly not."""
    params = greedy(
        structured_outputs=STRUCTURES[kind], ignore_eos=False, max_tokens=200, temperature=1.0
    )
    jobs = [Job(prompt, params) for prompt in itertools.islice(itertools.cycle(PROMPTS), 48)]
    expected = engine.run(jobs[:4])
    draft = Scripted(noise=0.05)
    draft.answers = dict(zip(PROMPTS, first_tokens(expected), strict=True))
    tally = Tally(engine)
    with FakeRouter(engine.address, draft):
        outputs = engine.run([replace(job, params=job.params) for job in capped(jobs, (None, 3))])
    assert tally.take()[1] > 0
    # A sampled list of numbers may go on beyond the limit, once in some thousand answers.
    whole = [output for output in outputs if output.outputs[0].finish_reason == "stop"]
    assert len(whole) >= 40
    for output in whole:
        assert is_valid(kind, output.outputs[0].text), output
    assert len({output.outputs[0].text for output in outputs}) > 1
