import pytest
import ray

from specray.errors import InvalidConfigError
from specray.serve.local import LocalCluster
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
