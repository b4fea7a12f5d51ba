"""What a vLLM request means for speculation."""

from collections.abc import Callable
from typing import NamedTuple

from vllm.sampling_params import SamplingParams, SamplingType
from vllm.v1.request import Request

from specray.config import MAX_DEPTH
from specray.observability.logs import printable
from specray.target.names import (
    ANY_ROUTER,
    DEPTH_ARG,
    REQUEST_ARG,
    ROUTER_ARG,
    TENANT_ARG,
    TRACE_ARG,
)
from specray.target.session import Session
from specray.types import SamplingSettings

_MAX_TOP_K = 2**31 - 1  # beyond every vocabulary, and within the protocol's field


class Names(NamedTuple):
    """What logs and traces call a request."""

    request_id: str
    traceparent: str  # of the router's span


def session(
    request: Request, session_id: int, max_model_len: int, choose_router: Callable[[], str]
) -> Session | None:
    """A session for the request, or None if it must decode plainly.

    Args:
        request: as vLLM has it.
        session_id: its number.
        max_model_len: tokens of prompt and answer, at most.
        choose_router: one for a request that came through none; empty if there is none.
    """
    params = request.sampling_params
    if params is None or not request.prompt_token_ids or request.mm_features:
        return None  # pooling, embeddings or images as the prompt: nothing a draft can read
    if request.resumable:
        return None  # vLLM goes on behind the last token that it takes to be kept, not the draft's
    args = params.extra_args or {}
    max_depth = args.get(DEPTH_ARG, MAX_DEPTH)
    router = args.get(ROUTER_ARG)
    if not isinstance(router, str) or not isinstance(max_depth, int) or max_depth < 1:
        return None
    if _needs_depth_0(params):
        return None
    return Session(
        session_id,
        choose_router() if router == ANY_ROUTER else router,
        request.all_token_ids,
        request.num_prompt_tokens,
        min(request.num_prompt_tokens + request.max_tokens, max_model_len),
        min(max_depth, MAX_DEPTH),  # whatever a client asks for: it must fit the protocol's field
        _sampling_settings(params),
        uses_distributions=not request.use_structured_output,
        request_id=names(request).request_id,
        tenant=printable(args.get(TENANT_ARG)),
        is_shareable=_is_shareable(request, params),
        min_length=request.num_prompt_tokens + params.min_tokens,
    )


def names(request: Request) -> Names:
    """How the router calls the request; empty where it did not say."""
    params = request.sampling_params
    args = (params.extra_args if params is not None else None) or {}
    return Names(printable(args.get(REQUEST_ARG)), printable(args.get(TRACE_ARG)))


def is_sampled(request: Request) -> bool:
    """Whether its tokens are drawn, and not just the likeliest ones."""
    params = request.sampling_params
    return params is not None and params.sampling_type != SamplingType.GREEDY


def forbids_drafts(request: Request) -> bool:
    """Whether no request may speculate in a step with this one.

    vLLM 0.29's rejection sampler can't report the log probabilities of tokens of the client's
    choice: it fails, or answers with others'. A step without drafts does not use it.
    """
    params = request.sampling_params
    return params is not None and bool(params.logprob_token_ids)


def _is_shareable(request: Request, params: SamplingParams) -> bool:
    """Whether the answer may be proposed to other requests.

    Not one that was drawn with a seed: a request with the same seed draws by the same random
    numbers, to which the proposal would be tied.
    """
    return params.seed is None or not is_sampled(request)


def _needs_depth_0(params: SamplingParams) -> bool:
    """vLLM's rejection sampler applies these to no draft position; see `workarounds`.

    Of the tokens that end a thinking budget it forces one a step at most, so that those of a longer
    end would differ.
    """
    is_budgeted = params.thinking_token_budget is not None
    return bool(params.logit_bias) or params.min_p > 0 or is_budgeted


def _sampling_settings(params: SamplingParams) -> SamplingSettings:
    # vLLM writes -1 or 0 for "all", and takes any number beyond the vocabulary for the same.
    top_k = params.top_k if 0 < params.top_k <= _MAX_TOP_K else 0
    is_greedy = params.sampling_type == SamplingType.GREEDY
    temperature = 0.0 if is_greedy else params.temperature
    return SamplingSettings(temperature, top_k, params.top_p)
