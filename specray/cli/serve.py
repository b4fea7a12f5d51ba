"""`specray serve FILE`: a local Ray and the application on it, until a signal ends both."""

import argparse
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from specray.cli.output import complain, say
from specray.errors import InvalidConfigError
from specray.serve import direct
from specray.serve.changes import compare
from specray.serve.check import explain
from specray.serve.config_file import BUILDER, read_file
from specray.serve.live import check_deployments
from specray.serve.local import LocalCluster, check_haproxy
from specray.serve.pools import Pool
from specray.serve.ports import check_port
from specray.serve.settings import AppArgs, parse

_POLL_S = 0.5
_REPORT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `specray serve`."""
    parser.add_argument("config", type=Path, help="a Serve config file, as for `serve run`")
    parser.add_argument("--host", help="address to listen on; overrides the file's http_options")
    parser.add_argument("--port", type=int, help="port to listen on; overrides the file's")
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=3600.0,
        metavar="S",
        help="seconds to come up, downloads included (3600)",
    )
    parser.add_argument(
        "--direct-streaming",
        action="store_true",
        help="clients' streams come from the targets, through HAProxy, as with Ray Serve LLM's "
        "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING; for one model",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    Returns:
        0 after a signal.

    Raises:
        InvalidConfigError: the file is faulty; nothing was started.
        StartupError: the application did not come up; everything has been stopped again.
    """

    def read() -> ServeDeploySchema:
        return read_config(args.config, args.host, args.port)

    config = read()
    pools: list[Pool] = []
    for app in _ours(config):
        explained = explain(app, config)
        pools += explained.pools
        for warning in explained.warnings:
            complain(f"{args.config}: warning: {warning}")
    applications = _applications(config)
    is_direct = args.direct_streaming or direct.is_on()
    if is_direct:
        check_haproxy()
        _check_host(config)
        for app_args in applications.values():
            direct.check(app_args)
    host, port = config.http_options.host, config.http_options.port
    check_port(host, port)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(_shared_cpus(applications), say, is_direct=is_direct)
        )
        signals = Signals()  # after Ray, which installs handlers of its own
        for app_args in applications.values():
            cluster.check_resources(app_args)
        cluster.check_all_fit(pools)
        cluster.deploy(config)
        url = service_url(config)
        if cluster.wait_until_ready(url, signals.stop, args.start_timeout):
            cluster.settle()
            _greet(f"{url}/v1", cluster, applications)
            watch(cluster, signals, config, read)
        say("stopping ...")
    say("stopped")
    return 0


def read_config(path: Path, host: str | None, port: int | None) -> ServeDeploySchema:
    """A Serve config file, with another place to listen on if one is given.

    Raises:
        InvalidConfigError: naming the file and the field.
    """
    config = read_file(path)
    if not config.applications:
        raise InvalidConfigError(f"{path}: applications: has none; deployments/local.yaml has one")
    changes = {"host": host, "port": port}
    http_options = config.http_options.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )
    return config.model_copy(update={"http_options": http_options})


class Signals:
    """What the user asks of the running service: SIGINT or SIGTERM to stop, SIGHUP to reload."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.reload = threading.Event()
        signal.signal(signal.SIGINT, self._take)
        signal.signal(signal.SIGTERM, self._take)
        signal.signal(signal.SIGHUP, self._take)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        (self.reload if number == signal.SIGHUP else self.stop).set()


def watch(
    cluster: LocalCluster,
    signals: Signals,
    running: ServeDeploySchema,
    read: Callable[[], ServeDeploySchema],
) -> None:
    """Block until a signal to stop; on SIGHUP apply the file's live settings, if it is sound."""
    reported = time.monotonic()
    while not signals.stop.wait(_POLL_S):
        if time.monotonic() - reported > _REPORT_S:  # asking Serve costs some 10 ms
            cluster.report()
            reported = time.monotonic()
        if signals.reload.is_set():
            signals.reload.clear()
            try:
                cluster.deploy(_reloaded(running, read()))
                say("reloaded")
            except InvalidConfigError as error:
                complain(f"not reloaded: {error}")
            except Exception:  # noqa: BLE001  # what is served outlives a reload
                complain(f"not reloaded: {traceback.format_exc()}")


def _reloaded(running: ServeDeploySchema, config: ServeDeploySchema) -> ServeDeploySchema:
    """The file as it is now, if nothing has changed but live settings.

    Raises:
        InvalidConfigError: it is faulty, or changes more than live settings.
    """
    for app in _ours(config):
        check_deployments(app, parse(app.args))
    changes = compare(running, config)
    if others := changes.in_place + changes.beyond:
        raise InvalidConfigError(
            f"{', '.join(others)} changed; only user_config changes while it runs: restart to "
            "apply the rest"
        )
    return config


def _check_host(config: ServeDeploySchema) -> None:
    """See that HAProxy, which goes by this node's address, reaches the replicas.

    Raises:
        InvalidConfigError: they would listen on another one.
    """
    host = config.http_options.host
    if host not in ("127.0.0.1", "localhost", "0.0.0.0"):
        raise InvalidConfigError(
            f"http_options.host: by --direct-streaming it is 127.0.0.1 or 0.0.0.0, not {host}"
        )


def _applications(config: ServeDeploySchema) -> dict[str, AppArgs]:
    """The arguments of each of the file's applications that are ours, their models found."""
    return {app.name: parse(app.args) for app in _ours(config)}


def _ours(config: ServeDeploySchema) -> list[ServeApplicationSchema]:
    return [app for app in config.applications if app.import_path == BUILDER]


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


def _greet(url: str, cluster: LocalCluster, applications: dict[str, AppArgs]) -> None:
    model = next(iter(applications.values())).target.model_id if applications else "MODEL"
    say(f"metrics: {cluster.metrics_url}")
    say(f"logs: {cluster.log_folder}")
    say(f"live settings: edit user_config in the file, then kill -HUP {os.getpid()}")
    say(f"ready: {url}")
    say(
        f"\n  curl {url}/chat/completions -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "{model}", "messages": '
        '[{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 64}\'\n'
    )


def service_url(config: ServeDeploySchema) -> str:
    """Where the first application of ours is to be reached, or else the first of all."""
    host, port = config.http_options.host, config.http_options.port
    prefix = (_ours(config) or config.applications)[0].route_prefix or ""
    host = "127.0.0.1" if host in ("0.0.0.0", "") else host
    return f"http://{host}:{port}{prefix.rstrip('/')}"
