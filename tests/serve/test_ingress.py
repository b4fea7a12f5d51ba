from typing import Any

import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException

from specray.config import MAX_DEPTH
from specray.serve.ingress import tagged
from specray.target.names import DEPTH_ARG, ROUTER_ARG


@pytest.mark.parametrize("xargs", [None, {}])
def test_a_request_without_arguments_gets_the_routers_name(xargs: dict[str, Any] | None) -> None:
    assert tagged(xargs, "r1") == {ROUTER_ARG: "r1"}


def test_the_clients_own_arguments_stay_and_are_not_changed() -> None:
    given = {"theirs": "x", DEPTH_ARG: 2}

    assert tagged(given, "r1") == {"theirs": "x", DEPTH_ARG: 2, ROUTER_ARG: "r1"}
    assert given == {"theirs": "x", DEPTH_ARG: 2}


def test_a_depth_beyond_all_bounds_is_the_largest() -> None:
    assert tagged({DEPTH_ARG: 10**30}, "r1")[DEPTH_ARG] == MAX_DEPTH


def test_no_client_names_a_router() -> None:
    assert tagged({ROUTER_ARG: "another"}, "r1")[ROUTER_ARG] == "r1"


@pytest.mark.parametrize("depth", [0, 1, MAX_DEPTH])
def test_a_number_of_tokens_is_a_depth(depth: int) -> None:
    assert tagged({DEPTH_ARG: depth}, "r1")[DEPTH_ARG] == depth


@pytest.mark.parametrize("depth", [-1, 1.0, "3", True, None, [1], float("nan")])
def test_anything_else_is_the_clients_error(depth: Any) -> None:
    with pytest.raises(OpenAIHTTPException) as info:
        tagged({DEPTH_ARG: depth}, "r1")

    assert info.value.status_code == 400
    assert DEPTH_ARG in info.value.message
    assert repr(depth) in info.value.message
