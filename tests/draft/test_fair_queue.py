from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.draft.fair_queue import FairQueue


def filled(sessions: Sequence[tuple[int, str]], **weights: float) -> FairQueue:
    queue = FairQueue(weights)
    for item, tenant in sessions:
        queue.put(item, tenant, 4)
    return queue


def test_one_tenants_sessions_come_in_their_order() -> None:
    queue = filled([(3, "a"), (1, "a"), (2, "a")])

    assert queue.take(2) == [3, 1]
    assert queue.take(9) == [2]
    assert queue.take(9) == []


def test_a_greedy_tenant_does_not_hold_up_the_others() -> None:
    queue = filled([*((i, "greedy") for i in range(100)), (200, "b"), (201, "c")])

    assert {200, 201} <= set(queue.take(3))


def test_who_comes_back_again_and_again_is_never_behind_all_of_a_greedy_ones_sessions() -> None:
    queue = filled([(i, "greedy") for i in range(1000)])
    waits = []
    for turn in range(100):
        queue.put(5000 + turn, "modest", 4)
        waits.append(1)
        while 5000 + turn not in queue.take(1):
            waits[-1] += 1

    assert max(waits) <= 2


@pytest.mark.parametrize(("weight", "share"), [(1.0, 1 / 2), (3.0, 3 / 4), (0.25, 1 / 5)])
def test_tenants_that_always_want_are_served_by_weight(weight: float, share: float) -> None:
    queue = filled([(i, "ab"[i % 2]) for i in range(2000)], b=weight)
    served = Counter("ab"[i % 2] for i in queue.take(800))

    assert served["b"] / 800 == pytest.approx(share, abs=0.01)


def test_time_is_shared_and_not_turns() -> None:
    queue = FairQueue({})
    for i in range(1000):
        queue.put(i, "deep" if i % 2 else "shallow", 8 if i % 2 else 2)
    served = Counter(i % 2 for i in queue.take(500))

    assert served[0] / served[1] == pytest.approx(4.0, rel=0.05)


def test_nobody_saves_up_time_by_asking_for_little() -> None:
    queue = filled([(i, "busy") for i in range(100)] + [(200, "idle")])
    queue.take(52)
    for i in range(300, 340):
        queue.put(i, "idle", 4)
    served = Counter("idle" if i >= 200 else "busy" for i in queue.take(40))

    assert served["idle"] == pytest.approx(20, abs=1)


def test_what_is_put_again_moves_and_what_is_discarded_does_not_come() -> None:
    queue = filled([(1, "a"), (2, "a"), (3, "a")])
    queue.put(1, "b", 4)
    queue.discard(2)
    queue.discard(99)

    assert (len(queue), queue.num_tenants) == (2, 2)
    assert sorted(queue.take(9)) == [1, 3]
    assert queue.take(9) == []


def test_what_is_asked_for_anew_keeps_its_place() -> None:
    queue = filled([(1, "a"), (2, "a"), (3, "a"), (4, "a")])
    served: Counter[int] = Counter()
    for _ in range(50):
        for item in queue.take(2):
            served[item] += 1
        for item in (1, 2, 3, 4):  # everyone's next commit comes before the others' turn
            queue.put(item, "a", 4)

    assert set(served.values()) == {25}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(1, 9)), max_size=60),
    st.integers(1, 7),
)
def test_everything_comes_once(puts: list[tuple[int, str, int]], most: int) -> None:
    queue = FairQueue({"a": 2.0})
    for item, tenant, cost in puts:
        queue.put(item, tenant, cost)
    taken: list[int] = []
    while queue:
        taken += queue.take(most)

    assert sorted(taken) == sorted({item for item, _, _ in puts})
