import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from specray.cli import USER_ERROR, main
from specray.cli.explain import describe
from specray.config import SpeculationConfig
from specray.serve.controller import Controller
from specray.serve.membership import EXPIRY_S, Member
from specray.types import FixedRule
from tests.control.reports_util import draft, idle, target


def explained() -> dict[str, Any]:
    """What a real controller says of imagined replicas."""
    now = [0.0]
    controller = Controller(SpeculationConfig(), ("draft",), 8, "draft", clock=lambda: now[0])
    controller.reconfigure({"num_replicas": {"draft": 3}})

    async def talk() -> dict[str, Any]:
        now[0] = EXPIRY_S
        await controller.heartbeat(Member("target", "t:1"), target(num_running=8.0))
        await controller.heartbeat(Member("target", "t:2"), idle())
        now[0] += 2.0
        await controller.heartbeat(Member("draft", "d:1"), draft())
        return await controller.explain()

    return asyncio.run(talk())


@pytest.fixture
def url() -> Iterator[str]:
    body = json.dumps(explained()).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/speculation"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(body if found else b"")

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_prints_who_is_there_and_what_was_decided(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{url}/v1/"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert "objective throughput" in lines[0]
    assert lines[0].endswith("policy on, at most 5 deep, by goodput")
    (heading,) = (line for line in lines if line.startswith("targets"))
    (first,) = (line for line in lines if line.startswith("t:1"))
    assert first.split()[:2] == ["t:1", "target:a"]
    assert first[heading.index("busy") :].split()[0] == "75%"
    assert any(line.startswith("d:1") for line in lines)
    (row,) = (line for line in lines if line.startswith("draft ") and "chosen by hand" in line)
    assert row.split()[:3] == ["draft", "1", "3"]
    assert any("places" in line for line in lines)


def test_a_gain_that_is_not_known_is_no_number() -> None:
    known = explained()
    for member in known["members"]:
        if member["role"] == "target":
            member["report"]["gain"] = 1.25 if member["address"] == "t:1" else 0.0
    lines = describe(known)

    column = next(line for line in lines if line.startswith("targets")).index("gain*")
    gains = [line[column:].split()[0] for line in lines if line.startswith("t:")]
    assert gains == ["1.25", "-"]


def test_it_says_by_which_rule_depths_are_chosen() -> None:
    known = explained()
    known["policy"]["depth_rule"] = asdict(FixedRule(depth=2))

    assert describe(known)[0].endswith("by fixed (depth 2)")


def test_the_same_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", url, "--json"]) == 0
    known = json.loads(capsys.readouterr().out)

    assert {decision["subject"] for decision in known["decisions"]} == {
        *("draft", "target:a", "depth ceiling", "fan-out ceiling")
    }


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense", "http://["])
def test_a_service_that_is_not_there_is_one_message(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", address]) == USER_ERROR
    said = capsys.readouterr().err
    assert "/speculation" in said
    assert "Traceback" not in said
