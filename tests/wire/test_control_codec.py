from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from specray.types import SourceStats, SpeculationPolicy
from specray.wire.control_codec import decode_policy, decode_stats, encode_policy, encode_stats
from specray.wire.stats import BUCKETS_S, Durations, TargetStats

counts = st.integers(0, 2**64 - 1)
lists = st.lists(counts, max_size=5)
buckets = st.lists(counts, min_size=len(BUCKETS_S), max_size=len(BUCKETS_S))
durations = st.builds(Durations, counts, st.floats(0, 1e9), buckets)
sources = st.dictionaries(
    st.sampled_from(("model", "prompt_lookup")),
    st.builds(SourceStats, counts, counts, lists, lists),
)
BY_TYPE = {int: counts, Durations: durations}
everything = {f.name: BY_TYPE.get(f.type, sources) for f in fields(TargetStats)}


@given(st.builds(TargetStats, **everything))
def test_every_counter_survives_the_wire(stats: TargetStats) -> None:
    assert decode_stats(encode_stats(stats)) == stats


@given(st.builds(SpeculationPolicy, st.booleans(), st.integers(0, 64), st.floats(0, 1e3)))
def test_policy_survives_the_wire(policy: SpeculationPolicy) -> None:
    assert decode_policy(encode_policy(policy)) == policy
