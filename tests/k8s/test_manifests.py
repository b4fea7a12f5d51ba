"""Each overlay and each preset of the chart, built by the real tools, passes every check."""

import pytest
import yaml

from tests.k8s.checks.all import faults
from tests.k8s.rendering import (
    CHART,
    K8S,
    OVERLAYS,
    Manifest,
    helm,
    kustomize,
    overlay,
    preset,
    temporary,
)


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_passes_all_checks(name: str) -> None:
    assert faults(overlay(name)) == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_preset_of_the_chart_passes_all_checks(name: str) -> None:
    assert faults(preset(name)) == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_chart_makes_what_the_overlay_makes(name: str) -> None:
    made = {_key(manifest): _content(manifest) for manifest in preset(name)}
    expected = {_key(manifest): _content(manifest) for manifest in overlay(name)}
    del expected[("Namespace", "specray")]  # Helm makes it with --create-namespace
    assert made.keys() == expected.keys()
    for key, content in expected.items():
        assert made[key] == content, key


@pytest.mark.parametrize("component", ["incremental-upgrade", "weights-bucket", "direct-streaming"])
def test_a_component_that_no_overlay_has_passes_all_checks(component: str) -> None:
    with temporary(["../overlays/70b"], [f"../components/{component}"]) as folder:
        manifests = kustomize(folder)

    assert faults(manifests) == []
    assert manifests != overlay("70b")


def test_by_direct_streaming_every_pod_of_ray_is_told_so() -> None:
    with temporary(["../overlays/70b"], ["../components/direct-streaming"]) as folder:
        manifests = kustomize(folder)
    (service,) = (manifest for manifest in manifests if manifest["kind"] == "RayService")
    cluster = service["spec"]["rayClusterConfig"]

    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        env = {v["name"]: v.get("value") for v in group["template"]["spec"]["containers"][0]["env"]}
        assert env["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
        assert env["RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING"] == "1"


def test_the_load_test_passes_all_checks() -> None:
    manifests = kustomize(K8S / "loadtest")

    assert faults([*overlay("70b"), *manifests]) == []
    (files,) = (manifest["data"] for manifest in manifests if manifest["kind"] == "ConfigMap")
    jobs = [manifest for manifest in manifests if manifest["kind"] == "Job"]
    assert len(jobs) == 2
    for job in jobs:
        (volume,) = job["spec"]["template"]["spec"]["volumes"]
        assert {item["key"] for item in volume["configMap"]["items"]} == files.keys()


@pytest.mark.parametrize(
    "options",
    [
        ["--set", "upgrade.type=NewClusterWithIncrementalUpgrade"],
        ["--set", "weights.source=bucket"],
        ["--set", "weights.source=claim,weights.claim.storageClassName=nfs"],
        ["--set", "redis.address=rediss://redis.infra:6380"],
        ["--set", "redis.address=redis://redis.infra:6379,networkPolicy.enabled=false"],
        ["--set", "image.pullSecrets={registry},image.pullPolicy=Always,image.tag=1.2"],
        ["--set-file", f"serve.config={CHART / 'serve' / '70b.yaml'}"],
    ],
    ids=[
        *("incremental-upgrade", "bucket", "claim", "own-redis", "own-redis-without-policies"),
        *("image", "own-config"),
    ],
)
def test_an_option_of_the_chart_passes_all_checks(options: list[str]) -> None:
    manifests = helm(*options)

    assert faults(manifests) == []


@pytest.mark.parametrize("more", ["", ",redis.address=redis://redis.infra:6379"])
def test_without_policies_none_shuts_the_head_in(more: str) -> None:
    """One for what goes out would be all that it may do."""
    manifests = helm("--set", "networkPolicy.enabled=false" + more)
    outward = [
        manifest["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for manifest in manifests
        if manifest["kind"] == "NetworkPolicy" and "Egress" in manifest["spec"]["policyTypes"]
    ]
    assert "head" not in outward


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("rediss://redis.infra:6380", 6380),
        ("redis://redis.infra:6381/", 6381),
        ("redis://redis.infra", 6379),
    ],
)
def test_the_head_reaches_a_redis_of_ones_own(address: str, port: int) -> None:
    manifests = helm("--set", f"redis.address={address}")
    policies = {m["metadata"]["name"]: m for m in manifests if m["kind"] == "NetworkPolicy"}
    client = next(spec for name, spec in policies.items() if name.endswith("-redis-client"))["spec"]

    assert client["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "head"
    assert [p["port"] for rule in client["egress"] for p in rule["ports"]] == [port]
    assert not any(name.endswith("-redis") for name in policies)


def test_only_weights_from_the_hub_take_a_nodes_disk() -> None:
    def requested(manifests: list[Manifest]) -> bool:
        return "ephemeral-storage" in yaml.safe_dump(manifests)

    assert requested(helm())
    assert not requested(helm("--set", "weights.source=claim"))


def test_another_release_shares_no_name_with_the_first() -> None:
    first = {_key(manifest) for manifest in helm()}
    second = {_key(manifest) for manifest in helm(release="other")}
    assert not first & second


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _content(manifest: Manifest) -> Manifest:
    """Without what only one of the tools writes; the Serve config as what it says."""
    content = {key: value for key, value in manifest.items() if key != "metadata"}
    if manifest["kind"] == "RayService":
        spec = content["spec"]
        content["spec"] = spec | {"serveConfigV2": yaml.safe_load(spec["serveConfigV2"])}
    return content
