"""`specray serve FILE`: a local Ray and the application on it, until a signal ends both."""

import argparse
import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from specray.cli.output import say
from specray.errors import InvalidConfigError
from specray.serve.local import LocalCluster, check_port
from specray.serve.settings import AppArgs, parse

_BUILDER = "specray:build_app"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `specray serve`."""
    parser.add_argument("config", type=Path, help="a Serve config file, as for `serve run`")
    parser.add_argument("--host", help="address to listen on; overrides the file's http_options")
    parser.add_argument("--port", type=int, help="port to listen on; overrides the file's")
    parser.add_argument(
        "--start-timeout", type=float, default=900.0, metavar="S", help="seconds to come up"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    Returns:
        0 after a signal.

    Raises:
        InvalidConfigError: the file is faulty; nothing was started.
        StartupError: the application did not come up; everything has been stopped again.
    """
    config = read_config(args.config, args.host, args.port)
    applications = {
        app.name: parse(app.args) for app in config.applications if app.import_path == _BUILDER
    }
    host, port = config.http_options.host, config.http_options.port
    check_port(host, port)
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(_shared_cpus(applications), say))
        stop = _stop_on_signals()  # after Ray, which installs handlers of its own
        for app_args in applications.values():
            cluster.check_resources(app_args)
        cluster.deploy(config)
        if cluster.wait_until_ready(_url(host, port, ""), stop, args.start_timeout):
            cluster.settle()
            _greet(host, port, cluster, applications)
            cluster.watch(stop)
        say("stopping ...")
    say("stopped")
    return 0


def read_config(path: Path, host: str | None, port: int | None) -> ServeDeploySchema:
    """A Serve config file, checked by Ray's own schema.

    Raises:
        InvalidConfigError: naming the file and the field.
    """
    try:
        raw = yaml.safe_load(path.read_text())
        config = ServeDeploySchema.model_validate(raw)
    except OSError as error:
        raise InvalidConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValidationError) as error:
        raise InvalidConfigError(f"{path}: {error}") from None
    changes = {"host": host, "port": port}
    http_options = config.http_options.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )
    return config.model_copy(update={"http_options": http_options})


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def request_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGINT, request_stop)
    signal.signal(signal.SIGTERM, request_stop)
    return stop


def _shared_cpus(applications: dict[str, AppArgs]) -> frozenset[int]:
    """The cores that Ray, the routers and the drafts share; none leaves all of them free.

    Raises:
        InvalidConfigError: a core that this machine does not have.
    """
    cpus = frozenset(cpu for args in applications.values() for cpu in args.draft.cpus)
    missing = cpus - os.sched_getaffinity(0)
    if missing:
        raise InvalidConfigError(
            f"draft.cpus: core {min(missing)} is not available here; there are "
            f"{sorted(os.sched_getaffinity(0))}"
        )
    return cpus


def _greet(host: str, port: int, cluster: LocalCluster, applications: dict[str, AppArgs]) -> None:
    url = _url(host, port, "/v1")
    model = next(iter(applications.values())).target.model_id if applications else "MODEL"
    say(f"metrics: {cluster.metrics_url}")
    say(f"logs: {cluster.log_folder}")
    say(f"ready: {url}")
    say(
        f"\n  curl {url}/chat/completions -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "{model}", "messages": '
        '[{"role": "user", "content": "Why is the sky blue?"}], "stream": true}\'\n'
    )


def _url(host: str, port: int, path: str) -> str:
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '') else host}:{port}{path}"
