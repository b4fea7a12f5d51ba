"""The config file that a comparison starts from, and what it starts with changes of."""

import copy
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from specray.cli.bench.service import Running, find_ready_url, running, serve_command
from specray.errors import InvalidConfigError
from specray.models.sources import resolve
from specray.serve.config_file import load
from specray.serve.ports import free_port, is_healthy

_HOST = "127.0.0.1"


class Deployment:
    """A config file of `specray serve` with one application, as data."""

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
            InvalidConfigError: it is not there, or has no application with a target.
        """
        try:
            self._content: dict[str, Any] = load(path.read_text("utf-8"))
            self._args["target"]["model_loading_config"]["model_id"]
        except (OSError, yaml.YAMLError, LookupError, TypeError) as error:
            raise InvalidConfigError(
                f"{path}: {error!r}; give a config file of `specray serve` with a target, "
                "such as deployments/local-hybrid.yaml"
            ) from None

    @property
    def _args(self) -> dict[str, Any]:
        args: dict[str, Any] = self._content["applications"][0]["args"]
        return args

    @property
    def target(self) -> str:
        """The target's folder or hub id."""
        loading = self._args["target"]["model_loading_config"]
        return resolve(loading.get("model_source", loading["model_id"]))

    @property
    def draft(self) -> str:
        """The draft model's folder or hub id.

        Raises:
            InvalidConfigError: the file names none.
        """
        model = (self._args.get("draft", {}).get("model") or {}).get("model")
        if model is None:
            raise InvalidConfigError("the config file has no draft.model.model to compare with")
        return resolve(model)

    @property
    def digest(self) -> str:
        """Tells files of different content apart."""
        return hashlib.sha256(json.dumps(self._content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def has_ngrams(self) -> bool:
        """Whether the file names a table of n-grams."""
        return bool(self._args.get("draft", {}).get("ngram"))

    @property
    def max_depth(self) -> int:
        """`speculation.max_depth`, where the file gives it."""
        return int(self._args.get("speculation", {}).get("max_depth", 5))

    @property
    def is_on_cpu(self) -> bool:
        """Whether the target computes on cores."""
        accelerator = self._args["target"].get("accelerator_config") or {}
        return bool(accelerator.get("kind") == "cpu")

    @property
    def engine_kwargs(self) -> dict[str, Any]:
        """vLLM's options of the target."""
        return dict(self._args["target"].get("engine_kwargs") or {})

    @property
    def environment(self) -> dict[str, str]:
        """The target's environment variables."""
        runtime = self._args["target"].get("runtime_env") or {}
        return dict(runtime.get("env_vars") or {})

    def changed(
        self, args: Mapping[str, Any], live_draft: Mapping[str, Any] | None, port: int
    ) -> dict[str, Any]:
        """The whole file with other settings, listening elsewhere.

        Args:
            args: settings over the application's, mappings merged.
            live_draft: the draft's `user_config`.
            port: where it listens, on this machine only.
        """
        content = copy.deepcopy(self._content)
        content["http_options"] = content.get("http_options", {}) | {"host": _HOST, "port": port}
        app = content["applications"][0]
        app["args"] = _merged(app["args"], args)
        if live_draft is not None:
            others = [entry for entry in app.get("deployments", ()) if entry["name"] != "draft"]
            app["deployments"] = [*others, {"name": "draft", "user_config": dict(live_draft)}]
        return content


class Service:
    """`specray serve` on a changed deployment, for the length of a measurement."""

    def __init__(self, deployment: Deployment, args: Mapping[str, Any], *options: str) -> None:
        """Takes what differs from the deployment, and the command's options."""
        self._deployment = deployment
        self._args = args
        self._options = options
        self._port = free_port()
        self._path: Path | None = None  # while it runs

    @contextmanager
    def run(self) -> Iterator[Running]:
        """Starts it, and stops it whatever happens; raises StartupError if it does not come up."""
        with tempfile.TemporaryDirectory(prefix="specray-bench-") as folder:
            self._path = Path(folder) / "config.yaml"
            self.write(None)
            command = serve_command(str(self._path), *self._options)
            with running(command, find_ready_url) as service:
                yield service

    def write(self, live_draft: Mapping[str, Any] | None) -> None:
        """Writes its file, while it runs; what is live in it is taken over at the next SIGHUP."""
        assert self._path is not None
        content = self._deployment.changed(self._args, live_draft, self._port)
        self._path.write_text(yaml.safe_dump(content), "utf-8")


@contextmanager
def run_vllm(
    deployment: Deployment, speculative_config: Mapping[str, Any] | None, num_threads: int | None
) -> Iterator[str]:
    """vLLM's own OpenAI server on the deployment's target; yields its URL.

    On a CPU it may use every core that we may, the draft's too, and gets the layout that is
    fastest there: the model in the engine core's process (see `specray.serve.target_engine`). Its
    faults in sampled speculation are mended.

    Args:
        deployment: names the target and its engine's options.
        speculative_config: vLLM's; None for none.
        num_threads: what the model is computed with on a CPU; None leaves it to vLLM. They are
            not bound: with this layout the server's own process would be bound with them.

    Raises:
        StartupError: if it ends or is not ready in time.
    """
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--host", _HOST, "--port", str(port), "--model", deployment.target]
    command += ["--worker-cls", "specray.target.mended_worker.MendedWorker"]
    command += ["--disable-uvicorn-access-log", *as_flags(deployment.engine_kwargs)]
    if speculative_config is not None:
        command += ["--speculative-config", json.dumps(speculative_config)]
    env = deployment.environment
    if deployment.is_on_cpu and deployment.engine_kwargs.get("tensor_parallel_size", 1) == 1:
        command += ["--distributed-executor-backend", "uni"]
        if num_threads is not None:
            env["OMP_NUM_THREADS"] = str(num_threads)
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # allows `uni`; the server has processes anyway
    url = f"http://{_HOST}:{port}"
    with running(command, lambda _lines: url if is_healthy(url) else None, env) as service:
        yield service.url


def as_flags(engine_kwargs: Mapping[str, Any]) -> list[str]:
    """vLLM's options as words of its command line."""
    words: list[str] = []
    for name, value in engine_kwargs.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
            words += [f"--{flag}", text]
    return words


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(old, value)
        else:
            result[key] = value
    return result
