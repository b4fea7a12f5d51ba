from typing import Any

import pytest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.request import Request

from specray.config import MAX_DEPTH
from specray.target import requests
from specray.target.names import ANY_ROUTER
from specray.target.session import Session
from specray.types import OpenSession, SamplingSettings, SessionFrame
from specray.wire.codec import decode_session_frame, encode_session_frame

MAX_MODEL_LEN = 100
GREEDY: dict[str, Any] = {"temperature": 0.0}


def request(
    args: dict[str, Any] | None = None, prompt: list[int] | None = None, **params: Any
) -> Request:
    params = {"max_tokens": 16, "extra_args": {"specray_router": "r"} | (args or {})} | params
    return Request("id", prompt or [5, 6, 7], SamplingParams(**params), None)


def nobody() -> str:
    raise AssertionError("the request names its router")


def session(*args: Any, **params: Any) -> Session | None:
    return requests.session(request(*args, **params), 1, MAX_MODEL_LEN, nobody)


def made(*args: Any, **params: Any) -> Session:
    result = session(*args, **params)
    assert result is not None
    return result


def test_a_request_becomes_a_session_of_its_router() -> None:
    result = made()

    assert (result.session_id, result.router) == (1, "r")
    assert list(result.token_ids[0:3]) == [5, 6, 7]
    assert result.num_prompt_tokens == 3
    assert result.uses_distributions


@pytest.mark.parametrize(
    ("params", "is_shareable"),
    [
        ({"seed": 0}, False),
        ({"seed": 5, "temperature": 0.3}, False),
        ({}, True),
        (GREEDY, True),
        (GREEDY | {"seed": 1}, True),
    ],
)
def test_an_answer_is_not_shared_whose_random_numbers_may_come_again(
    params: dict[str, Any], is_shareable: bool
) -> None:
    assert made(**params).is_shareable == is_shareable


def test_a_request_whose_prompt_comes_in_parts_is_decoded_plainly() -> None:
    streamed = request(**GREEDY)
    streamed.resumable = True
    assert requests.session(streamed, 1, MAX_MODEL_LEN, nobody) is None


def test_a_session_sees_the_tokens_that_are_added_later() -> None:
    engines = request()
    result = requests.session(engines, 1, MAX_MODEL_LEN, nobody)
    assert result is not None
    engines.append_output_token_ids([8, 9])

    assert len(result.token_ids) == 5
    assert result.token_ids[3:] == [8, 9]


@pytest.mark.parametrize(("max_tokens", "length"), [(16, 19), (10_000, MAX_MODEL_LEN)])
def test_no_draft_reaches_beyond_the_end_of_the_answer(max_tokens: int, length: int) -> None:
    result = made(max_tokens=max_tokens)

    assert result.max_length == length
    assert result.room() == length - 3 - 1


@pytest.mark.parametrize(
    ("num_written", "depth"), [(0, 5), (5, 4), (8, 1), (9, 0), (10, 5)], ids=str
)
def test_no_step_reaches_from_where_an_answer_may_not_end_to_where_it_may(
    num_written: int, depth: int
) -> None:
    """vLLM forbids the end behind the last draft token by the length before the step."""
    engines = request(min_tokens=10)
    result = requests.session(engines, 1, MAX_MODEL_LEN, nobody)
    assert result is not None
    engines.append_output_token_ids([8] * num_written)

    assert result.cap(5) == depth


def test_chosen_tokens_log_probabilities_forbid_drafts_in_their_step() -> None:
    assert requests.forbids_drafts(request(logprob_token_ids=[1, 2]))
    assert not requests.forbids_drafts(request(logprobs=2))


@pytest.mark.parametrize(
    ("asked", "depth"), [(1, 1), (3, 3), (MAX_DEPTH, MAX_DEPTH), (10**12, MAX_DEPTH)]
)
def test_a_request_may_cap_its_depth(asked: int, depth: int) -> None:
    assert made({"num_speculative_tokens": asked}).max_depth == depth


@pytest.mark.parametrize(
    "args",
    [
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": -1},
        {"num_speculative_tokens": "5"},
        {"num_speculative_tokens": 2.5},
        {"num_speculative_tokens": float("nan")},
        {"num_speculative_tokens": None},
        {"specray_router": None},
        {"specray_router": 7},
    ],
)
def test_without_a_depth_or_a_router_it_decodes_plainly(args: dict[str, Any]) -> None:
    assert session(args) is None


def test_the_target_chooses_a_router_for_one_that_is_any_routers() -> None:
    engines = request({"specray_router": ANY_ROUTER})

    result = requests.session(engines, 1, MAX_MODEL_LEN, lambda: "r7")

    assert result is not None
    assert result.router == "r7"


def test_a_request_that_came_past_the_routers_decodes_plainly() -> None:
    assert session(extra_args=None) is None


@pytest.mark.parametrize(
    "params", [{"logit_bias": {3: 1.0}}, {"min_p": 0.1}, {"thinking_token_budget": 9}]
)
def test_what_the_rejection_sampler_can_not_do_decodes_plainly(params: dict[str, Any]) -> None:
    assert session(temperature=1.0, **params) is None


def test_pooling_and_embedded_prompts_decode_plainly() -> None:
    pooling = request()
    pooling.sampling_params = None
    embedded = request()
    embedded.prompt_token_ids = None
    empty = request()
    empty.prompt_token_ids = []

    assert [requests.session(r, 1, MAX_MODEL_LEN, nobody) for r in (pooling, embedded, empty)] == [
        None
    ] * 3


def test_a_grammar_forbids_the_use_of_distributions() -> None:
    assert not made(structured_outputs=StructuredOutputsParams(json="{}")).uses_distributions


@pytest.mark.parametrize(
    ("params", "settings"),
    [
        (GREEDY, SamplingSettings(0.0, 0, 1.0)),
        ({"temperature": 0.7}, SamplingSettings(0.7, 0, 1.0)),
        ({"temperature": 0.7, "top_k": -1}, SamplingSettings(0.7, 0, 1.0)),
        ({"temperature": 0.7, "top_k": 40, "top_p": 0.9}, SamplingSettings(0.7, 40, 0.9)),
        ({"temperature": 1.0, "top_k": 2**40}, SamplingSettings(1.0, 0, 1.0)),
    ],
)
def test_the_draft_is_told_how_the_target_samples(
    params: dict[str, Any], settings: SamplingSettings
) -> None:
    assert made(**params).sampling == settings


def test_whatever_a_client_asks_for_fits_into_the_protocol() -> None:
    result = made({"num_speculative_tokens": 10**30}, temperature=2.0, top_k=10**30)
    tokens = tuple(result.token_ids[0:3])
    opened = OpenSession(1, tokens, 3, result.sampling, result.max_depth)

    frame = SessionFrame(opens=(opened,))
    assert decode_session_frame(encode_session_frame(frame)) == frame


def test_a_request_brings_its_names_if_it_has_any() -> None:
    args = {"specray_request_id": "r\n1", "specray_traceparent": "00-ab"}

    assert requests.names(request(args)) == ("r1", "00-ab")
    assert made(args).request_id == "r1"
    assert requests.names(request()) == ("", "")
    assert requests.names(request({"specray_request_id": 5})) == ("", "")
