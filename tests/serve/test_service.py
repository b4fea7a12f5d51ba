"""The whole service over HTTP, as `deployments/local.yaml` has it, with two drafts."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import yaml

from specray.cli import main
from specray.serve.ports import free_port
from tests.docs.fences import WITH_SERVICE, Fence, commands
from tests.prometheus import RARE, Query, dashboard_queries, prometheus, rule_queries
from tests.serve.chromium import browser
from tests.serve.identity import PlainAnswers, answer, answers, assert_same
from tests.serve.looking import walk_through
from tests.serve.prompts import PROMPTS
from tests.serve.service import MODEL, Service, local_config, running
from tests.serve.watching import (
    SPANS,
    ask,
    exported,
    lines_of,
    sessions_of,
    spans_of,
    tracks_of,
)

pytestmark = [pytest.mark.e2e, pytest.mark.service, pytest.mark.timeout(1800)]

TWO_TO_THREE = {
    "min_replicas": 2,
    "max_replicas": 3,
    "upscale_delay_s": 0,
    "downscale_delay_s": 0,
}
"""Replicas of the draft of `deployments/local.yaml`; others' is that of `test_direct_streaming`."""

PATIENCE_S = 300.0  # shared machines are slower by a factor of three at times

LONGEST_GAP_S = 3.0  # between two chunks of a stream, when drafts die; a step takes some 0.06 s


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    options = {
        "autoscaling_config": TWO_TO_THREE,
        "ray_actor_options": {},
        "health_check_period_s": 2,
    }
    config = local_config(deployment_config=options)
    folder = tmp_path_factory.mktemp("service")
    policy = {"policy_function": "specray.serve.scaling:scale_pools"}
    config["applications"][0]["autoscaling_policy"] = policy
    config["logging_config"] = {"encoding": "JSON"}
    config["applications"][0]["args"]["observability"] = {
        "session_log": True,
        "traces": f"file:{folder / 'traces'}",
        "timeline": str(folder / "timeline"),
    }
    with running(config, folder) as started:
        yield started


def test_greedy_tokens_are_the_targets_own(service: Service, plain_answers: PlainAnswers) -> None:
    """Every prompt meets the draft; those that are asked for alone, as it takes longer, are few."""
    plain = plain_answers(service)
    before = accepted_tokens(service)

    assert_same(service, plain[::10], answers(service, PROMPTS[::10]))
    assert_same(service, plain, answers(service, PROMPTS, at_once=8))

    wait_until(lambda: accepted_tokens(service) > before + 50, 10.0)


def test_openai_client(service: Service) -> None:
    client = service.client()
    assert [model.id for model in client.models.list()] == [MODEL]
    messages: Any = [{"role": "user", "content": PROMPTS[0]}]
    options: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(messages=messages, **options)
    stream = client.chat.completions.create(
        messages=messages, stream=True, stream_options={"include_usage": True}, **options
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    completion = client.completions.create(prompt="Once upon a time", **options)
    streamed = client.completions.create(prompt="Once upon a time", stream=True, **options)
    assert "".join(c.choices[0].text for c in streamed) == completion.choices[0].text


def test_usage_ends_at_the_stop_string(service: Service) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from 1 to 30, separated by commas."}],
        "temperature": 0,
        "max_tokens": 48,
        "stop": ["7."],  # two tokens
    }
    client = service.client()
    plain = client.chat.completions.create(
        **options, extra_body={"vllm_xargs": {"num_speculative_tokens": 0}}
    )
    speculated = client.chat.completions.create(**options)
    assert plain.choices[0].finish_reason == "stop"
    assert speculated.choices == plain.choices
    assert speculated.usage == plain.usage


def test_options_with_speculation(service: Service) -> None:
    client = service.client()
    messages: Any = [{"role": "user", "content": "Is the sky blue? Answer yes or no."}]
    options: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 24}
    banned = 2683  # any token: the answer must not hold it
    biased = client.chat.completions.create(
        temperature=0,
        logit_bias={str(banned): -100},
        extra_body={"return_token_ids": True},
        **options,
    )
    assert banned not in biased.choices[0].model_extra["token_ids"]  # type: ignore[index]
    several = client.chat.completions.create(temperature=1, n=3, seed=7, logprobs=True, **options)
    assert len(several.choices) == 3
    assert all(choice.logprobs and choice.logprobs.content for choice in several.choices)
    schema = {
        "type": "object",
        "properties": {"sky": {"enum": ["blue", "green"]}},
        "required": ["sky"],
        "additionalProperties": False,
    }
    structured = client.chat.completions.create(
        temperature=1,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        **options,
    )
    assert json.loads(structured.choices[0].message.content or "")["sky"] in ("blue", "green")


@pytest.mark.parametrize("depth", [-1, "many", 1.5])
def test_bad_depth_is_an_openai_error(service: Service, depth: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="num_speculative_tokens"):
        service.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            extra_body={"vllm_xargs": {"num_speculative_tokens": depth}},
        )


def test_health_and_metrics(service: Service) -> None:
    reply = httpx.get(service.url.replace("/v1", "/health"), timeout=PATIENCE_S)
    assert reply.json() == {"status": "ok"}
    names = {
        "proposed_tokens_total",
        "accepted_tokens_total",
        "proposed_tokens_at_position_total",
        "committed_tokens_total",
        "acceptance_rate",
        "block_efficiency",
        "step_seconds_bucket",
        "draft_seconds_bucket",
        "relay_seconds_bucket",
        "proposals_total",
        "open_sessions",
        "draft_proposals_total",
        "relay_hop_seconds_bucket",
    }

    def are_all_there() -> bool:
        text = httpx.get(service.metrics_url, timeout=PATIENCE_S).text
        return all(f"ray_specray_{name}{{" in text for name in names)

    wait_until(are_all_there, 30.0)


@pytest.mark.parametrize(
    "fence", [fence for fence in commands() if fence.title == WITH_SERVICE], ids=str
)
def test_what_the_documentation_asks_of_a_running_service(service: Service, fence: Fence) -> None:
    text = fence.text.replace("http://127.0.0.1:8000", service.url.removesuffix("/v1"))
    program = [sys.executable, "-c"] if fence.language == "python" else ["bash", "-euc"]
    done = subprocess.run([*program, text], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_disconnect_closes_the_session(service: Service) -> None:
    assert_a_disconnect_closes_the_session(service)


def test_policy_changes_without_a_restart(service: Service) -> None:
    pids = {process.pid for process in service.processes()}
    with live(service, is_enabled=False):
        before = proposed_tokens(service)
        answer(service, PROMPTS[13])
        time.sleep(4.0)
        assert proposed_tokens(service) == before
    wait_until(lambda: _proposes_again(service, before), 60.0)
    targets = {process.pid for process in service.replicas("target")}
    assert targets
    assert targets <= pids


def test_drafts_follow_the_controller_and_it_tells_why(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load(service.config_file.read_text())
    original = service.config_file.read_text()
    config["applications"][0]["deployments"][0]["user_config"] = {"num_replicas": {"draft": 3}}
    try:
        reload(service, yaml.safe_dump(config))
        wait_until(lambda: len(_reports(service, "draft")) == 3, PATIENCE_S, _known, service)
        answer(service, PROMPTS[13])
        assert main(["explain", service.url]) == 0
        assert "chosen by hand" in capsys.readouterr().out
        wait_until(
            lambda: _reports(service, "target")[0]["tokens_per_s"] > 0, PATIENCE_S, _known, service
        )
        wait_until(
            lambda: _reports(service, "router")[0]["requests_per_s"] > 0,
            PATIENCE_S,
            _known,
            service,
        )
    finally:
        reload(service, original)
    wait_until(lambda: len(_reports(service, "draft")) == 2, PATIENCE_S, _known, service)


def _reports(service: Service, role: str) -> list[dict[str, Any]]:
    return [m["report"] for m in _known(service)["members"] if m["role"] == role]


def _known(service: Service) -> dict[str, Any]:
    reply = httpx.get(service.url.replace("/v1", "/speculation"), timeout=PATIENCE_S)
    reply.raise_for_status()
    known: dict[str, Any] = reply.json()
    return known


def _proposes_again(service: Service, before: float) -> bool:
    answer(service, PROMPTS[13])
    return proposed_tokens(service) > before


def test_the_page_in_a_browser(speculating: Service, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as page:
        walk_through(page, speculating.url.removesuffix("/v1"), tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.png")) == [
        "desktop-dark.png",
        "desktop-light.png",
        "phone-dark.png",
        "phone-light.png",
    ]


def test_drafts_that_freeze_or_die_cost_speed_only(
    speculating: Service, plain_answers: PlainAnswers
) -> None:
    """One of two drafts is frozen, the other killed, while streams run."""
    expected = plain_answers(speculating)[10:18]
    frozen, killed = speculating.replicas("draft")
    gaps: list[float] = []
    watcher = threading.Thread(target=_watch_stream, args=(speculating, gaps))
    watcher.start()
    try:
        wait_until(lambda: len(gaps) > 5, 30.0)
        frozen.send_signal(signal.SIGSTOP)
        first = answers(speculating, PROMPTS[10:18], at_once=4)
        killed.kill()
        second = answers(speculating, PROMPTS[10:18], at_once=4)
    finally:
        with suppress(psutil.NoSuchProcess):  # Serve may have replaced it by now
            frozen.send_signal(signal.SIGCONT)
        watcher.join()
    assert_same(speculating, expected, first)
    assert_same(speculating, expected, second)
    assert max(gaps) < LONGEST_GAP_S
    wait_until(lambda: gauge(speculating, "connected_replicas", 'role="draft"') == 2, 120.0)


def test_a_controller_that_dies_is_replaced_and_requests_never_notice(
    speculating: Service, plain_answers: PlainAnswers
) -> None:
    expected = plain_answers(speculating)[10:18]
    before, policy = proposed_tokens(speculating), _known(speculating)["policy"]
    (controller,) = speculating.replicas("controller")
    controller.kill()

    assert_same(speculating, expected, answers(speculating, PROMPTS[10:18], at_once=4))
    wait_until(lambda: proposed_tokens(speculating) > before, 20.0)
    wait_until(lambda: speculating.replicas("controller") not in ([], [controller]), 60.0)
    wait_until(lambda: len(_members(speculating)) == 4, 60.0)  # two drafts, a target, a router
    assert _known(speculating)["policy"] == policy  # the live one, not the file's


def _members(service: Service) -> list[dict[str, Any]]:
    with suppress(httpx.HTTPStatusError):  # 503 until the new one has heard of all
        members: list[dict[str, Any]] = _known(service)["members"]
        return members
    return []


def test_logs_and_spans_of_a_request_join_up(speculating: Service) -> None:
    request_id, trace_id, parent_id = (
        "joined-1",
        "0af7651916cd43dd8448eb211c80319c",
        "b7ad6b7169203331",
    )
    ask(speculating, request_id, f"00-{trace_id}-{parent_id}-01")

    for role in ("replica_specray_router", "engine_specray_target", "replica_specray_draft"):
        wait_until(partial(lines_of, speculating, role, request_id), 20.0)
    target, *more = lines_of(speculating, "engine_specray_target", request_id)
    assert not more
    assert target["output_tokens"] == 24
    assert target["accepted_tokens"] > 0

    traces = speculating.config_file.parent / "traces"
    wait_until(lambda: {span["name"] for span in spans_of(traces, trace_id)} == SPANS, 20.0)
    spans = {span["name"]: span for span in spans_of(traces, trace_id)}
    assert len(spans) == len(spans_of(traces, trace_id))
    parents = {name: span["parent_id"] for name, span in spans.items()}
    ids = {name: span["context"]["span_id"] for name, span in spans.items()}
    assert parents == {
        "specray.request": f"0x{parent_id}",
        "specray.target": ids["specray.request"],
        "prefill": ids["specray.target"],
        "decode": ids["specray.target"],
        "specray.draft": ids["specray.target"],
    }


def test_a_timeline_follows_commits_and_proposals_through_the_router(
    speculating: Service, tmp_path: Path
) -> None:
    ask(speculating, "timed-1", "00-0af7651916cd43dd8448eb211c8031a3-b7ad6b7169203331-01")

    timeline = speculating.config_file.parent / "timeline"
    events = exported(timeline, tmp_path, "--request", "timed-1")
    assert {"target", "draft", "wire", "buffer"} <= tracks_of(events)
    travelled = [event["name"] for event in events if event.get("cat") == "wire"]
    assert {"commit", "proposal"} <= {*travelled}
    assert {role for role, _, _ in sessions_of(events)} == {"target", "draft"}


def test_every_query_has_data_and_an_alert_follows_a_draft(
    speculating: Service, tmp_path: Path
) -> None:
    asked = [*dashboard_queries(), *rule_queries()]
    expected = [query for query in asked if not any(name in query.expr for name in RARE)]
    with prometheus(speculating.metrics_url, free_port(), tmp_path) as server:
        stream = threading.Thread(target=_watch_stream, args=(speculating, []))
        stream.start()  # its session is on one of the two, and moves if that is the one
        wait_until(lambda: gauge(speculating, "open_sessions") > 0, 30.0)
        wait_until(lambda: server.value("specray:drafts_connected") == 2, 30.0)
        alerts = {"SpecrayDraftMissing", "SpecrayNoDraft"}
        with none_is_replaced(speculating):
            for draft in speculating.replicas("draft"):
                draft.kill()
            wait_until(lambda: alerts <= server.firing(), 60.0, server.query, "up")
        wait_until(lambda: not alerts & server.firing(), 240.0)
        stream.join()

        def missing() -> list[Query]:
            answers(speculating, PROMPTS[:2], at_once=2)
            return server.without_data(expected)

        wait_until(lambda: not missing(), 120.0, missing)


@contextmanager
def none_is_replaced(service: Service) -> Iterator[None]:
    """Serve's own controller is frozen: a draft starts sooner than some alerts fire."""
    (controller,) = service.named("ServeController")
    controller.suspend()
    try:
        yield
    finally:
        controller.resume()


def _watch_stream(service: Service, gaps: list[float]) -> None:
    stream = service.client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPTS[22]}],
        temperature=0,
        max_tokens=250,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    last = time.monotonic()
    for _ in stream:
        now = time.monotonic()
        gaps.append(now - last)
        last = now


@contextmanager
def live(service: Service, **settings: Any) -> Iterator[None]:
    """The controller's `user_config` as given, for a while; then the file has none."""
    original = service.config_file.read_text()
    config = yaml.safe_load(original)
    controller = config["applications"][0]["deployments"][0]
    controller["user_config"] = settings
    try:
        reload(service, yaml.safe_dump(config))
        time.sleep(4.0)  # two heartbeats, then two exports of metrics
        yield
    finally:
        del controller["user_config"]
        reload(service, yaml.safe_dump(config))
        service.config_file.write_text(original)


@pytest.fixture(scope="module")
def speculating(service: Service) -> Iterator[Service]:
    """Depths are fixed: on a slow machine ours may find that speculation does not pay just now.

    From the first test that wants it to the end: those of `service` as its file has it come before.
    """
    with live(service, depth_policy={"name": "fixed", "depth": 5}):
        yield service


def reload(service: Service, config: str) -> None:
    service.config_file.write_text(config)
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_line("reloaded", PATIENCE_S)


def assert_a_disconnect_closes_the_session(service: Service) -> None:
    stream = service.client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPTS[22]}],
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    wait_until(lambda: gauge(service, "open_sessions") > 0, 20.0)
    stream.close()
    wait_until(lambda: gauge(service, "open_sessions") == 0, 30.0)
    wait_until(lambda: gauge(service, "draft_sessions") == 0, 30.0)


def wait_until(condition: Any, timeout_s: float, *explanation: Any) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            explain, *arguments = explanation or (str, "did not become true in time")
            raise AssertionError(explain(*arguments))
        time.sleep(0.5)


def gauge(service: Service, name: str, label: str = "") -> float:
    return sum(_values(service, f"ray_specray_{name}{{", label))


def accepted_tokens(service: Service) -> float:
    return sum(_values(service, "ray_specray_accepted_tokens_total{", ""))


def proposals(service: Service, outcome: str) -> float:
    """As many as were `used`, `late`, `stale`, `invalid` or `missed`."""
    return sum(_values(service, "ray_specray_proposals_total{", f'outcome="{outcome}"'))


def proposed_tokens(service: Service) -> float:
    return sum(_values(service, "ray_specray_proposed_tokens_total{", ""))


def _values(service: Service, prefix: str, label: str) -> list[float]:
    lines = httpx.get(service.metrics_url, timeout=PATIENCE_S).text.splitlines()
    return [float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(prefix) and label in x]
