from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.errors import ProtocolError
from specray.types import (
    AcceptanceRule,
    BatchSizeRule,
    FixedRule,
    GoodputRule,
    QpsRule,
    SourceStats,
    SpeculationPolicy,
)
from specray.wire import speculation_pb2 as pb
from specray.wire.control_codec import decode_policy, decode_stats, encode_policy, encode_stats
from specray.wire.stats import (
    BUCKETS_S,
    CalibrationStats,
    Durations,
    EngineLoad,
    Prospect,
    Reason,
    RelayStats,
    RooflineStats,
    TargetStats,
    Traffic,
)

counts = st.integers(0, 2**64 - 1)
lists = st.lists(counts, max_size=5)
buckets = st.lists(counts, min_size=len(BUCKETS_S), max_size=len(BUCKETS_S))
durations = st.builds(Durations, counts, st.floats(0, 1e9), buckets)
sources = st.dictionaries(
    st.sampled_from(("model", "prompt_lookup")),
    st.builds(SourceStats, counts, counts, lists, lists),
)
floats = st.floats(0, 1e12)
traffic = st.builds(Traffic, counts, counts, durations)
addresses = st.text(max_size=9)
switches = st.builds(
    RelayStats,
    st.none(),
    st.lists(addresses, max_size=3).map(tuple),
    st.dictionaries(addresses, counts, max_size=3),
    counts,
    st.dictionaries(st.sampled_from(get_args(Reason)), counts),
    traffic,
    traffic,
)
BY_TYPE = {
    int: counts,
    float: floats,
    Durations: durations,
    CalibrationStats: st.builds(
        CalibrationStats, lists, lists, st.lists(st.floats(0, 1e9), max_size=5)
    ),
    RelayStats | None: st.none() | switches,
    RooflineStats: st.builds(RooflineStats, floats, floats, st.text(max_size=9)),
    EngineLoad: st.builds(
        EngineLoad, counts, counts, counts, floats, counts, durations, floats, counts, floats
    ),
    Prospect: st.builds(Prospect, floats, floats),
}
rules = st.one_of(
    st.just(GoodputRule()),
    st.builds(FixedRule, depth=st.integers(0, 64)),
    st.just(BatchSizeRule(table=((1, 4, 5), (6, 9, 1)))),
    st.just(QpsRule(base_depth=7, adjustment=0.5)),
    st.just(AcceptanceRule(lower=0.1, window=7)),
)
everything = {f.name: BY_TYPE.get(f.type, sources) for f in fields(TargetStats)}


@given(st.builds(TargetStats, **everything))
def test_every_counter_survives_the_wire(stats: TargetStats) -> None:
    assert decode_stats(encode_stats(stats)) == stats


@given(
    st.builds(
        SpeculationPolicy,
        st.booleans(),
        st.integers(0, 64),
        st.floats(0, 1e3),
        rules,
        st.booleans(),
    )
)
def test_policy_survives_the_wire(policy: SpeculationPolicy) -> None:
    assert decode_policy(encode_policy(policy)) == policy


def test_a_controller_of_before_knows_no_rule() -> None:
    old = pb.Policy(is_enabled=True, max_depth=4, max_wait_ms=9.0)

    assert decode_policy(old.SerializeToString()) == SpeculationPolicy(True, 4, 9.0)


@pytest.mark.parametrize("text", ["{", '{"name": "psychic"}', '{"name": "fixed", "depth": -1}'])
def test_a_rule_that_is_not_known_here_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="depth_rule"):
        decode_policy(pb.Policy(depth_rule=text).SerializeToString())
