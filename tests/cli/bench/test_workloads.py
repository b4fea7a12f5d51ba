import pytest

from specray.cli.bench.workloads import MIXED, WORKLOADS, load_prompts


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_has_ten_different_prompts(workload: str) -> None:
    prompts = load_prompts(workload)

    assert len(set(prompts)) == len(prompts) >= 10


def test_summaries_have_a_paragraph_and_edits_have_code() -> None:
    assert all(len(prompt.split()) > 70 for prompt in load_prompts("summarising"))
    assert all(prompt.count("```") == 2 for prompt in load_prompts("code"))


def test_mixed_prompts_take_turns() -> None:
    mixed = load_prompts(MIXED)

    assert mixed[:3] == [load_prompts(workload)[0] for workload in WORKLOADS]
    assert len(set(mixed)) == len(mixed) >= 30
