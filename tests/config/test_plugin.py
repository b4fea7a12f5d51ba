from specray.config import EngineCoreConfig, ObservabilityConfig, TargetPluginConfig
from specray.types import FixedRule, SpeculationPolicy


def test_what_the_plug_ins_are_told_survives_json() -> None:
    policy = SpeculationPolicy(depth_rule=FixedRule(depth=2))
    watch = ObservabilityConfig(traces="file:/spans")
    plugin = TargetPluginConfig(
        max_depth=3, policy=policy, trust_draft_distributions=True, observability=watch
    )
    sent = EngineCoreConfig(plugin=plugin, listen_host="::1")

    assert EngineCoreConfig.model_validate_json(sent.model_dump_json()) == sent
