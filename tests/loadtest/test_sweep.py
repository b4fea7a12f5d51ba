import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loadtest.sweep import SYSTEMS, config_of, num_gpus, served
from specray.serve.settings import validate

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"


def source(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((DEPLOYMENTS / f"{name}.yaml").read_text())
    return config


@pytest.mark.parametrize(
    ("system", "name", "gpus"),
    [
        ("baseline", "llama70b", 4),
        ("co-located", "llama70b", 4),
        ("disaggregated", "llama70b", 5),
        ("disaggregated", "llama70b-3b", 9),  # its target follows the load: at its most
    ],
)
def test_gpus_of_a_system(system: str, name: str, gpus: int) -> None:
    assert num_gpus(system, source(name)) == gpus


def test_the_baseline_is_the_same_target_without_drafts() -> None:
    before = source("local")
    args = validate(config_of("baseline", before)["applications"][0]["args"])

    assert args.speculation.max_depth == 0
    assert args.target == validate(before["applications"][0]["args"]).target
    assert before == source("local")


def test_the_co_located_one_is_rays_own_app_with_vllms_speculation() -> None:
    (app,) = config_of("co-located", source("local"))["applications"]
    (target,) = app["args"]["llm_configs"]

    assert app["import_path"] == "ray.serve.llm:build_openai_app"
    assert target["engine_kwargs"]["speculative_config"]["method"] == "ngram"
    assert target["engine_kwargs"]["speculative_config"]["num_speculative_tokens"] == 5
    assert "deployments" not in app
    given = {"method": "eagle3", "model": "m", "num_speculative_tokens": 3}
    (app,) = config_of("co-located", source("local"), given)["applications"]
    assert app["args"]["llm_configs"][0]["engine_kwargs"]["speculative_config"] == given


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("local-hybrid", "draft_model"),
        ("local-model-draft", "draft_model"),
        ("local-engine", "draft_model"),
        ("llama70b-eagle3", "eagle3"),
    ],
)
def test_the_co_located_one_drafts_with_the_same_model_or_head(name: str, method: str) -> None:
    before = source(name)
    (app,) = config_of("co-located", before)["applications"]
    given = app["args"]["llm_configs"][0]["engine_kwargs"]["speculative_config"]
    inside = before["applications"][0]["args"]["target"]["engine_kwargs"].get("speculative_config")

    assert given["method"] == method
    assert given["num_speculative_tokens"] > 0
    assert inside is None or inside.items() <= given.items()


def test_an_unknown_system_is_named() -> None:
    with pytest.raises(SystemExit, match=SYSTEMS[0]):
        config_of("fast", source("local"))


ORPHANING = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=True)
time.sleep(60)
"""
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "m"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *args): ...

HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture
def url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_a_system_is_gone_before_the_next_starts(url: str) -> None:
    command = [sys.executable, "-c", ORPHANING, SERVER, url.rpartition(":")[2]]

    with served(command, url, orphans_timeout_s=0.5):
        assert httpx.get(url).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_what_others_serve_is_not_measured(url: str) -> None:
    command = [sys.executable, "-c", SERVER, url.rpartition(":")[2]]

    with (
        served(command, url),
        pytest.raises(SystemExit, match="serves at .* already"),
        served(command, url),
    ):
        pass


def test_a_service_that_ends_is_reported(url: str) -> None:
    with (
        pytest.raises(SystemExit, match="ended with 3"),
        served([sys.executable, "-c", "raise SystemExit(3)"], url),
    ):
        pass
