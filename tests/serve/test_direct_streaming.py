"""The whole service by direct streaming, with a draft that is often wrong: the same answers.

Its streams to the draft are direct, too.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import openai
import pytest

from tests.serve.identity import PlainAnswers, answers, assert_same
from tests.serve.prompts import PROMPTS
from tests.serve.service import MODEL, Service, local_config, running
from tests.serve.test_service import (
    PATIENCE_S,
    accepted_tokens,
    assert_a_disconnect_closes_the_session,
    live,
    proposals,
    proposed_tokens,
    wait_until,
)
from tests.serve.watching import (
    SPANS,
    ask,
    exported,
    lines_of,
    sessions_of,
    spans_of,
    tracks_of,
)

pytestmark = [pytest.mark.e2e, pytest.mark.service, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    config = local_config(
        method="custom",
        custom={
            "import_path": "tests.saboteur:Unreliable",
            "kwargs": {"model": "bundled:smollm2-135m-instruct-draft"},
        },
        deployment_config={"num_replicas": 1, "ray_actor_options": {}},
    )
    # However slow the machine, the model's proposals shall be seen.
    settings = {
        "max_wait_ms": 100,
        "stop_gap": False,
        "depth_policy": {"name": "fixed", "depth": 3},
        "data_path": "direct",
    }
    config["applications"][0]["args"]["speculation"] |= settings
    folder = tmp_path_factory.mktemp("direct")
    config["logging_config"] = {"encoding": "JSON"}
    config["applications"][0]["args"]["observability"] = {
        "session_log": True,
        "traces": f"file:{folder / 'traces'}",
        "timeline": str(folder / "timeline"),
    }
    with running(config, folder, "--direct-streaming") as started:
        yield started


@pytest.fixture
def root(service: Service) -> str:
    return service.url.removesuffix("/v1")


def test_greedy_tokens_are_the_targets_own(service: Service, plain_answers: PlainAnswers) -> None:
    plain = plain_answers(service)
    proposed, accepted = proposed_tokens(service), accepted_tokens(service)

    # Those that are asked for alone, as it takes longer, are fewer.
    assert_same(service, plain[::10], answers(service, PROMPTS[::10]))
    assert_same(service, plain[::2], answers(service, PROMPTS[::2], at_once=8))

    wait_until(lambda: proposed_tokens(service) > proposed, 20.0)
    wait_until(lambda: accepted_tokens(service) > accepted, 10.0)
    for outcome in ("stale", "invalid"):
        assert proposals(service, outcome) > 0


def test_no_process_stands_between_haproxy_and_the_target(service: Service) -> None:
    """Serve's own proxy is there as a fallback; the router's answers are few."""
    busy = [*service.replicas("router"), *service.named("ProxyActor")]
    before = cpu_s(busy)
    target_before = cpu_s(service.replicas("target"))
    answers(service, PROMPTS[:12], depth=0, at_once=8)  # without proposals

    assert len(busy) == 2
    assert cpu_s(busy) - before < cpu_s(service.replicas("target")) - target_before


def test_tokens_come_as_they_are_made(service: Service) -> None:
    """Through handles Ray Serve LLM sends what it has gathered for 50 ms."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Write a poem about rain."}],
        "max_tokens": 48,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "vllm_xargs": {"num_speculative_tokens": 0},
    }
    url = f"{service.url}/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=120.0) as reply:
        lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    sizes = [len(choice.get("token_ids") or ()) for c in chunks for choice in c["choices"]]
    assert sum(sizes) == 48
    assert max(sizes) == 1


def test_openai_client_and_stop_strings(service: Service) -> None:
    client = service.client()
    assert [model.id for model in client.models.list()] == [MODEL]
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from 1 to 30, separated by commas."}],
        "temperature": 0,
        "max_tokens": 48,
        "stop": ["7."],  # two tokens
    }
    plain = client.chat.completions.create(
        **options, extra_body={"vllm_xargs": {"num_speculative_tokens": 0}}
    )
    speculated = client.chat.completions.create(**options)
    assert plain.choices[0].finish_reason == "stop"
    assert speculated.choices == plain.choices
    assert speculated.usage == plain.usage


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("depth", [-1, "many", 1.5])
def test_bad_depth_is_an_openai_error(service: Service, depth: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="num_speculative_tokens"):
        service.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            stream=stream,
            extra_body={"vllm_xargs": {"num_speculative_tokens": depth}},
        )


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"model": "nope", "messages": []}, 404),
        ("/v1/chat/completions", {"model": MODEL}, 400),
        ("/v1/nothing", {}, 404),
        ("/ui/answer", {"prompt": ""}, 400),
    ],
)
def test_what_is_refused_is_so_in_openais_form(
    root: str, path: str, body: dict[str, Any], status: int
) -> None:
    answer = httpx.post(f"{root}{path}", json=body)

    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_the_router_tells_how_the_service_is(service: Service, root: str) -> None:
    assert httpx.get(f"{root}/health").json() == {"status": "ok"}
    assert httpx.get(f"{root}/ui/status").json()["models"] == [MODEL]
    answers(service, PROMPTS[:1])

    def has_tenants() -> bool:
        members = httpx.get(f"{root}/speculation").json()["members"]
        return any(m["report"]["tenants"] for m in members if m["role"] == "target")

    wait_until(has_tenants, 10.0)


def test_the_page_answers(root: str) -> None:
    question = {"prompt": "Count from 1 to 20.", "max_tokens": 24}
    answer = httpx.post(f"{root}/ui/answer", json=question, timeout=60.0)

    kinds = [json.loads(line[6:])["kind"] for line in answer.text.splitlines() if line]
    assert "tokens" in kinds  # and none that are known as accepted, which only a relay hears of
    assert kinds[-1] == "end"


def test_disconnect_closes_the_session(service: Service) -> None:
    assert_a_disconnect_closes_the_session(service)


def test_logs_and_spans_of_a_request_join_up(service: Service) -> None:
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319d", "b7ad6b7169203331"
    ask(service, "direct-1", f"00-{trace_id}-{parent_id}-01")

    wait_until(partial(lines_of, service, "engine_specray_target", "direct-1"), 20.0)
    traces = service.config_file.parent / "traces"
    wait_until(lambda: {span["name"] for span in spans_of(traces, trace_id)} == SPANS, 20.0)
    spans = spans_of(traces, trace_id)
    (request,) = (span for span in spans if span["name"] == "specray.request")
    (target,) = (span for span in spans if span["name"] == "specray.target")
    assert request["parent_id"] == f"0x{parent_id}"
    assert request["attributes"]["specray.request_id"] == "direct-1"
    assert target["parent_id"] == request["context"]["span_id"]


def test_one_request_of_two_at_once_is_exported_from_the_timeline(
    service: Service, tmp_path: Path
) -> None:
    """Both are of the same length, and each process has numbers of its own for them."""
    names = ("timed-1", "timed-2")
    parents = [f"00-0af7651916cd43dd8448eb211c8031{n}-b7ad6b7169203331-01" for n in ("a1", "a2")]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(partial(ask, service), names, parents))

    timeline = service.config_file.parent / "timeline"
    everything = exported(timeline, tmp_path)
    apart = [exported(timeline, tmp_path, "--request", name) for name in names]
    for events in apart:
        happened = {event["name"] for event in events}
        assert {"target", "draft", "wire", "buffer"} <= tracks_of(events)
        assert {"verify", "commit sent", "commit arrived", "commit", "proposal"} <= happened
        assert happened & {"answer", "draft ahead"}
        assert happened & {"answer buffered", "outcome buffered"}
    mine, others = (sessions_of(events) for events in apart)
    assert len({session for role, _, session in mine if role == "target"}) == 1
    assert not mine & others
    assert mine | others <= sessions_of(everything)
    assert any(len(e["args"]["sessions"]) == 2 for e in everything if e["name"] == "verify")

    picture = tmp_path / "mine.svg"
    exported(timeline, tmp_path, "--request", names[0], "--svg", str(picture), "--commits", "2")
    drawn = [shape.get("class") for shape in ElementTree.parse(picture).getroot().iter()]
    assert {"t", "up"} <= {*drawn}  # verifications and commits
    assert {"a", "d"} & {*drawn}  # and what the draft did


def test_a_router_that_dies_costs_speed_only(service: Service, plain_answers: PlainAnswers) -> None:
    """Requests do not pass it; the next one is found by its stream."""
    plain = plain_answers(service)[:4]
    (router,) = service.replicas("router")
    # Ours may find that speculation does not pay just now, and try it again minutes later.
    with live(service, depth_policy={"name": "fixed", "depth": 5}):
        router.kill()

        assert_same(service, plain, answers(service, PROMPTS[:4], at_once=4))

        # Without load, beside which the next one takes longer to start.
        wait_until(lambda: service.replicas("router") not in ([], [router]), PATIENCE_S)
        proposed = proposed_tokens(service)

        def proposes_again() -> bool:
            answers(service, PROMPTS[:1])
            return proposed_tokens(service) > proposed

        wait_until(proposes_again, PATIENCE_S)


def cpu_s(processes: list[Any]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(t.user + t.system for t in times))


def test_its_files_go_with_it(service: Service) -> None:
    folder = next(line for line in service.lines if line.startswith("logs: ")).split()[1]
    session = Path(folder).parents[2]
    assert list(session.rglob("haproxy.cfg"))  # in the service's own folder
