"""Faults that people make, each planted into a sound overlay, and each caught by name."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import yaml

from tests.k8s.checks.all import faults
from tests.k8s.rendering import Manifest, overlay


class Found(NamedTuple):
    """The parts of the overlay that faults are planted in."""

    manifests: list[Manifest]

    def of(self, kind: str, name: str = "specray") -> Any:
        """The manifest of that kind and name."""
        return next(
            manifest
            for manifest in self.manifests
            if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
        )

    def spec(self, kind: str, name: str = "specray") -> Any:
        """Its spec."""
        return self.of(kind, name)["spec"]

    @property
    def cluster(self) -> Any:
        """The RayService's cluster."""
        return self.spec("RayService")["rayClusterConfig"]

    def group(self, name: str) -> Any:
        """A worker group."""
        return next(g for g in self.cluster["workerGroupSpecs"] if g["groupName"] == name)

    def container(self, group: str) -> Any:
        """Ray's container in a worker group."""
        return self.group(group)["template"]["spec"]["containers"][0]

    def edit_serve(self, edit: Callable[[Any], None]) -> None:
        """Change the application in the Serve config."""
        config = yaml.safe_load(self.spec("RayService")["serveConfigV2"])
        edit(config["applications"][0])
        self.spec("RayService")["serveConfigV2"] = yaml.safe_dump(config)


def _wrong_field_name(found: Found) -> None:
    found.cluster["workerGroupSpec"] = found.cluster.pop("workerGroupSpecs")


def _wrong_pod_field(found: Found) -> None:
    found.container("draft")["livenesProbe"] = found.container("draft").pop("livenessProbe")


def _wrong_api_version(found: Found) -> None:
    found.of("RayService")["apiVersion"] = "ray.io/v1beta1"


def _number_for_a_string(found: Found) -> None:
    found.group("target")["resources"]["GPU"] = 4


def _missing_gpu_limit(found: Found) -> None:
    del found.container("target")["resources"]["limits"]["nvidia.com/gpu"]


def _gpus_differ(found: Found) -> None:
    found.group("target")["resources"]["GPU"] = "8"


def _too_many_cpus(found: Found) -> None:
    found.group("draft")["resources"]["CPU"] = "8"


def _resources_twice(found: Found) -> None:
    found.group("draft")["rayStartParams"]["num-gpus"] = "1"


def _privileged(found: Found) -> None:
    found.container("target")["securityContext"]["privileged"] = True


def _root(found: Found) -> None:
    found.group("draft")["template"]["spec"]["securityContext"]["runAsUser"] = 0


def _missing_probe(found: Found) -> None:
    del found.container("router")["readinessProbe"]


def _image_not_pinned(found: Found) -> None:
    found.container("draft")["image"] = "registry.example.com/specray"


def _api_token(found: Found) -> None:
    del found.group("draft")["template"]["spec"]["automountServiceAccountToken"]


def _unknown_serve_key(found: Found) -> None:
    found.edit_serve(lambda app: app["args"]["draft"].update(num_speculative_tokens=5))


def _unknown_deployment(found: Found) -> None:
    found.edit_serve(lambda app: app["deployments"].append({"name": "drafts", "num_replicas": 2}))


def _unknown_policy(found: Found) -> None:
    found.edit_serve(lambda app: app["deployments"][0]["user_config"].update(depth=3))


def _negative_depth(found: Found) -> None:
    found.edit_serve(lambda app: app["args"]["speculation"].update(max_depth=-1))


def _loopback_streams(found: Found) -> None:
    found.edit_serve(lambda app: app["args"]["speculation"].update(listen_host="127.0.0.1"))


def _serve_config_is_no_yaml(found: Found) -> None:
    found.spec("RayService")["serveConfigV2"] = "applications: ["


def _draft_unbound(found: Found) -> None:
    def unbind(app: Any) -> None:
        del app["args"]["draft"]["deployment_config"]["ray_actor_options"]["resources"]

    found.edit_serve(unbind)


def _wrong_accelerator(found: Found) -> None:
    found.edit_serve(lambda app: app["args"]["target"].update(accelerator_type="A100"))


def _more_ranks_than_gpus(found: Found) -> None:
    found.edit_serve(
        lambda app: app["args"]["target"]["engine_kwargs"].update(tensor_parallel_size=8)
    )


def _surge_without_pods(found: Found) -> None:
    found.edit_serve(
        lambda app: app["args"]["target"]["deployment_config"].update(max_surge_percent=100)
    )


def _more_replicas_than_pods(found: Found) -> None:
    def three_drafts(app: Any) -> None:
        app["args"]["draft"]["deployment_config"]["autoscaling_config"]["max_replicas"] = 3

    found.edit_serve(three_drafts)


def _policy_selects_nobody(found: Found) -> None:
    labels = found.spec("NetworkPolicy", "specray-redis")["podSelector"]["matchLabels"]
    labels["app.kubernetes.io/component"] = "cache"


def _monitor_selects_nobody(found: Found) -> None:
    found.spec("PodMonitor")["selector"]["matchLabels"]["app.kubernetes.io/instance"] = "other"


def _budget_selects_nobody(found: Found) -> None:
    labels = found.spec("PodDisruptionBudget", "specray-target")["selector"]["matchLabels"]
    labels["app.kubernetes.io/component"] = "targets"


def _missing_secret_key(found: Found) -> None:
    env = found.container("target")["env"]
    next(e for e in env if e["name"] == "HF_TOKEN")["valueFrom"]["secretKeyRef"]["key"] = "hf-token"


def _wrong_port_name(found: Found) -> None:
    found.spec("PodMonitor")["podMetricsEndpoints"][0]["port"] = "prometheus"


def _unknown_account(found: Found) -> None:
    found.group("draft")["template"]["spec"]["serviceAccountName"] = "specray-drafts"


def _unknown_claim(found: Found) -> None:
    claim = {"claimName": "models"}
    found.group("draft")["template"]["spec"]["volumes"][0] = {
        "name": "models",
        "persistentVolumeClaim": claim,
    }


def _unknown_upgrade(found: Found) -> None:
    found.spec("RayService")["upgradeStrategy"]["type"] = "RollingUpdate"


def _step_beyond_surge(found: Found) -> None:
    options = {
        "gatewayClassName": "istio",
        "intervalSeconds": 10,
        "stepSizePercent": 50,
        "maxSurgePercent": 20,
    }
    strategy = {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": options}
    found.spec("RayService")["upgradeStrategy"] = strategy


def _password_in_the_open(found: Found) -> None:
    found.cluster["headGroupSpec"]["rayStartParams"]["redis-password"] = "123"


def _alert_without_runbook(found: Found) -> None:
    del found.spec("PrometheusRule")["groups"][1]["rules"][0]["annotations"]["runbook_url"]


PLANTED: dict[str, tuple[Callable[[Found], None], str]] = {
    "wrong field name": (_wrong_field_name, "'workerGroupSpec' was unexpected"),
    "wrong field of a pod": (_wrong_pod_field, "'livenesProbe' was unexpected"),
    "wrong apiVersion": (_wrong_api_version, "no kind RayService in API ray.io/v1beta1"),
    "number where a string is due": (_number_for_a_string, "GPU: 4 is not of type 'string'"),
    "missing GPU limit": (_missing_gpu_limit, "gpu is 4 in requests and None in limits"),
    "num-gpus differs": (_gpus_differ, "group target: Ray has 8 GPUs, the container 4"),
    "num-cpus beyond the limit": (_too_many_cpus, "group draft: Ray has 8 CPUs, the container 4"),
    "resources said twice": (_resources_twice, "resources both in rayStartParams"),
    "privileged container": (_privileged, "target, ray-worker: privileged"),
    "root": (_root, "draft: may run as root"),
    "missing probe": (_missing_probe, "router, ray-worker: no readinessProbe"),
    "image without a tag": (_image_not_pinned, "specray is not pinned"),
    "needless API token": (_api_token, "draft: gets a token of the Kubernetes API"),
    "unknown key in the serve config": (_unknown_serve_key, "num_speculative_tokens"),
    "unknown deployment": (_unknown_deployment, "no deployment drafts"),
    "unknown key of the live policy": (_unknown_policy, "depth"),
    "depth -1": (_negative_depth, "max_depth\n.*greater than or equal to 0"),
    "streams on the loopback": (_loopback_streams, "speculation.listen_host"),
    "serve config that is no YAML": (_serve_config_is_no_yaml, "serveConfigV2: while parsing"),
    "draft bound to no group": (_draft_unbound, r"a draft replica .* \['draft', 'target'\]"),
    "GPU type that no group has": (_wrong_accelerator, r"accelerator_type:A100.*: \[\]"),
    "more ranks than GPUs": (_more_ranks_than_gpus, r"a target replica needs .*'GPU': 8.*: \[\]"),
    "a change without a pod for it": (_surge_without_pods, "too little .* in maxReplicas for all"),
    "more replicas than pods": (_more_replicas_than_pods, "too little .* in maxReplicas for all"),
    "policy that selects nobody": (_policy_selects_nobody, "NetworkPolicy specray-redis selects"),
    "monitor that selects nobody": (_monitor_selects_nobody, "PodMonitor specray selects nobody"),
    "budget that selects nobody": (_budget_selects_nobody, "Budget specray-target selects nobody"),
    "missing key of a Secret": (_missing_secret_key, "no Secret specray-hub with key hf-token"),
    "wrong port name": (_wrong_port_name, "has no port prometheus"),
    "unknown service account": (_unknown_account, "no ServiceAccount specray-drafts"),
    "unknown volume claim": (_unknown_claim, "no PersistentVolumeClaim models"),
    "unknown upgrade strategy": (_unknown_upgrade, "'RollingUpdate' is not one of"),
    "step beyond the surge": (_step_beyond_surge, "stepSizePercent is larger"),
    "Redis password in the open": (_password_in_the_open, "belongs into gcsFault"),
    "alert without a runbook": (_alert_without_runbook, "'runbook_url' is a required property"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(name: str) -> None:
    plant, message = PLANTED[name]
    manifests = overlay("70b")
    plant(Found(manifests))

    found = faults(manifests)

    assert any(re.search(message, fault) for fault in found), found


def test_a_weight_that_the_job_does_not_fetch_is_named() -> None:
    manifests = overlay("405b")
    found = Found(manifests)
    found.edit_serve(
        lambda app: app["args"]["draft"]["model"].update(model="meta-llama/Llama-3.2-3B-Instruct")
    )

    assert any("does not fetch ['meta-llama/Llama-3.2-3B" in fault for fault in faults(manifests))


def test_a_head_that_does_not_wait_for_the_weights_is_named() -> None:
    manifests = overlay("405b")
    (wait,) = Found(manifests).cluster["headGroupSpec"]["template"]["spec"]["initContainers"]
    wait["env"][0]["value"] = "meta-llama/Llama-3.1-8B-Instruct"

    assert faults(manifests) == ["the head does not wait for what Job specray-weights fetches"]


def test_a_privileged_init_container_is_named() -> None:
    manifests = overlay("405b")
    (wait,) = Found(manifests).cluster["headGroupSpec"]["template"]["spec"]["initContainers"]
    wait["securityContext"]["privileged"] = True

    assert any("wait-for-weights: privileged" in fault for fault in faults(manifests))
