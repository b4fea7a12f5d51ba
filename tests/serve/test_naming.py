from typing import Any

import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException

from specray.config import MAX_DEPTH
from specray.serve.naming import named
from specray.target.names import DEPTH_ARG, REQUEST_ARG, ROUTER_ARG, TENANT_ARG, TRACE_ARG


@pytest.mark.parametrize("xargs", [None, {}])
def test_a_request_without_arguments_gets_its_names(xargs: dict[str, Any] | None) -> None:
    names = {"request_id": "q1", "traceparent": "00-1", "tenant": "them"}

    assert named(xargs, "r1", **names) == {
        ROUTER_ARG: "r1",
        REQUEST_ARG: "q1",
        TRACE_ARG: "00-1",
        TENANT_ARG: "them",
    }


def test_the_clients_own_arguments_stay_and_are_not_changed() -> None:
    given = {"theirs": "x", DEPTH_ARG: 2}

    assert {"theirs": "x", DEPTH_ARG: 2, ROUTER_ARG: "r1"}.items() <= named(given, "r1").items()
    assert given == {"theirs": "x", DEPTH_ARG: 2}


def test_a_depth_beyond_all_bounds_is_the_largest() -> None:
    assert named({DEPTH_ARG: 10**30}, "r1")[DEPTH_ARG] == MAX_DEPTH


@pytest.mark.parametrize("key", [ROUTER_ARG, REQUEST_ARG, TRACE_ARG, TENANT_ARG])
def test_no_client_names_itself(key: str) -> None:
    assert named({key: "another"}, "r1")[key] != "another"


@pytest.mark.parametrize("depth", [0, 1, MAX_DEPTH])
def test_a_number_of_tokens_is_a_depth(depth: int) -> None:
    assert named({DEPTH_ARG: depth}, "r1")[DEPTH_ARG] == depth


@pytest.mark.parametrize("depth", [-1, 1.0, "3", True, None, [1], float("nan")])
def test_anything_else_is_the_clients_error(depth: Any) -> None:
    with pytest.raises(OpenAIHTTPException) as info:
        named({DEPTH_ARG: depth}, "r1")

    assert info.value.status_code == 400
    assert DEPTH_ARG in info.value.message
    assert repr(depth) in info.value.message
