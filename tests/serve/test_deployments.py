"""The config files that we ship: checked as far as this is possible without their models."""

from functools import cache
from pathlib import Path

import pytest
from ray import cloudpickle
from ray.serve.config import AutoscalingPolicy

from specray.serve.check import Application, check_file
from specray.serve.config_file import read_file

FILES = sorted((Path(__file__).parents[2] / "deployments").glob("*.yaml"))
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specray.models.sources.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("specray.models.sources.default_cache", lambda: tmp_path)


@cache
def explained(file: Path) -> Application:
    (application,) = check_file(file).applications
    return application


def header(file: Path) -> str:
    """The comment at the top, as one line."""
    lines = file.read_text().split("proxy_location:")[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines)


def test_there_are_all_that_the_readme_lists() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()

    assert len(FILES) >= 12
    for file in FILES:
        assert f"(deployments/{file.name})" in readme


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_can_be_served_and_says_what_it_needs(file: Path) -> None:
    """`check_file` raises on faults; what a header says of memory is what is worked out here."""
    application = explained(file)
    told = header(file)

    assert application.draft_method is not None
    for memory in application.targets.values():
        assert memory is not None
        assert f"weights {memory.weight_bytes / GIB:.1f} GiB" in told
        assert f"KV cache {memory.kv_bytes_per_token / 1024:g} KiB a token" in told
        (room,) = memory.rooms
        assert f"{room.num_tokens // 1000},000 tokens" in told
    if (draft := application.draft) is not None:
        assert f"draft: weights {draft.weight_bytes / GIB:.1f} GiB" in told
        assert f"KV cache {draft.kv_bytes_per_token / 1024:g} KiB a token" in told
        assert f"{draft.total_bytes / GIB:.1f} GiB in all" in told
        assert f"{draft.growth_bytes / GIB:.1f} to move a request that grows" in told
        is_in_place = draft.copy_bytes == 0
        assert ("working copy" in told) == (draft.is_on_gpu or not is_in_place)
        if draft.is_on_gpu and is_in_place:
            copy = f"without Triton a working copy of up to {draft.pool_bytes / GIB:.1f} GiB"
            assert copy in told
    for words in ("hardware ", "memory ", "run ", f"deployments/{file.name}"):
        assert words in told


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_none_needs_advice(file: Path) -> None:
    assert explained(file).warnings == ()


@pytest.mark.parametrize(
    ("name", "target_gpus", "draft_gpus"),
    [("llama70b", 4, 1), ("llama405b", 8, 1), ("opt", 1, 1), ("smollm2", 0.8, 0.2)],
)
def test_what_a_replica_of_each_takes(name: str, target_gpus: float, draft_gpus: float) -> None:
    pools = explained(next(file for file in FILES if file.stem == name)).pools

    gpus = {pool.role: pool.gpus for pool in pools}
    assert (gpus["target"], gpus["draft"]) == (target_gpus, draft_gpus)


def test_pools_follow_the_load_within_bounds_where_our_policy_is_on() -> None:
    file = next(file for file in FILES if file.stem == "llama70b-autoscaling")
    (app,) = read_file(file).applications
    pools = {pool.role: pool for pool in explained(file).pools}

    policy = AutoscalingPolicy.model_validate(app.autoscaling_policy).get_serialized_policy_def()
    assert cloudpickle.loads(policy).__name__ == "scale_pools"
    for role in ("target", "draft"):
        assert (pools[role].min_replicas, pools[role].max_replicas) == (1, 2)


def test_mixed_gpus_are_placed_by_type() -> None:
    pools = explained(next(file for file in FILES if file.stem == "mixed-gpus")).pools

    assert {pool.role: pool.accelerator_type for pool in pools if pool.gpus} == {
        "target": "H100",
        "draft": "L4",
    }


def test_two_target_pools_share_a_draft_pool() -> None:
    application = explained(next(file for file in FILES if file.stem == "multi-draft"))

    assert len(application.targets) == 2
    assert [pool.role for pool in application.pools].count("draft") == 1
