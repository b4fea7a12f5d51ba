from specray.config import TargetPluginConfig
from specray.types import FixedRule, SpeculationPolicy


def test_what_the_plug_ins_are_told_survives_json() -> None:
    policy = SpeculationPolicy(depth_rule=FixedRule(depth=2))
    sent = TargetPluginConfig(max_depth=3, policy=policy, trust_draft_distributions=True)

    assert TargetPluginConfig.model_validate(sent.model_dump(mode="json")) == sent
    assert TargetPluginConfig.model_validate_json(sent.model_dump_json()) == sent
