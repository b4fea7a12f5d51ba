import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import ValidationError

from specray.router.watch import SessionWatch
from specray.serve.ui.answer import Question, chat_request, events, token_texts
from specray.types import (
    Accepted,
    Commit,
    OpenSession,
    SamplingSettings,
    SessionFrame,
)


def choice(text: str, *tokens: str) -> dict[str, Any]:
    content = [{"token": token} for token in tokens]
    ids = list(range(len(tokens)))
    return {"delta": {"content": text}, "logprobs": {"content": content}, "token_ids": ids}


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        (choice("Hello", "Hel", "lo"), ["Hel", "lo"]),
        (choice("", "<|end|>"), [""]),
        (choice("so", "so", "<|end|>"), ["so", ""]),
        (choice("🎉", "�", "�"), ["", "🎉"]),
        (choice("plain"), ["plain"]),
        ({"delta": {"role": "assistant"}, "logprobs": None}, []),
    ],
)
def test_each_token_has_its_part_of_the_text(given: dict[str, Any], pieces: list[str]) -> None:
    assert token_texts(given) == pieces


def test_a_question_becomes_a_chat_request_with_its_depth() -> None:
    question = Question(prompt="Hi", num_speculative_tokens=0, max_tokens=7)
    body = chat_request(question, "m")

    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["model"], body["max_tokens"]) == ("m", 7)
    assert body["vllm_xargs"] == {"num_speculative_tokens": 0}
    assert chat_request(Question(prompt="Hi"), "m")["vllm_xargs"] == {}


@pytest.mark.parametrize("fault", [{"prompt": ""}, {"max_tokens": 0}, {"depth": 1}])
def test_a_faulty_question_is_refused(fault: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Question.model_validate({"prompt": "Hi"} | fault)


async def chunks(*bodies: dict[str, Any]) -> AsyncIterator[Any]:
    for body in bodies:
        yield f"data: {json.dumps(body)}\n\n"
    yield "data: [DONE]\n\n"


def told(watch: SessionWatch, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    async def collect() -> list[str]:
        return [event async for event in events(chunks(*bodies), watch)]

    return [json.loads(event.removeprefix("data: ")) for event in asyncio.run(collect())]


def test_text_then_what_was_accepted_of_it_then_the_end() -> None:
    watch = SessionWatch("r")
    opened = OpenSession(1, (5, 6), 2, SamplingSettings(), 5, request_id="r")
    watch.from_target("t", SessionFrame(opens=(opened,), commits=(Commit(1, 2, (7,), 5, 0),)))
    commit = Commit(1, 3, (8, 9), 5, 0, (Accepted(3, 1, "model"),))
    watch.from_target("t", SessionFrame(commits=(commit,), closes=(1,)))
    usage = {"completion_tokens": 3}
    heard = told(
        watch,
        {"choices": [choice("a", "a")]},
        {"choices": [choice("bc", "b", "c")]},
        {"choices": [], "usage": usage},
    )

    assert heard == [
        {"kind": "tokens", "texts": ["a"]},
        {"kind": "accepted", "position": 1, "num_tokens": 1, "source": "model"},
        {"kind": "tokens", "texts": ["b", "c"]},
        {"kind": "end", "usage": usage},
    ]


def test_an_answer_without_a_session_has_no_colours() -> None:
    heard = told(SessionWatch("r"), {"choices": [choice("a", "a")]})
    assert [event["kind"] for event in heard] == ["tokens", "end"]


def test_an_error_of_the_engine_ends_it() -> None:
    heard = told(SessionWatch("r"), {"error": {"message": "too long"}}, {"choices": []})
    assert heard == [{"kind": "error", "message": "too long"}]
