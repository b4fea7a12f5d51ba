from specray.draft.fair_share import FairShare, Held


def held(*tenants: str, amount: float = 1) -> list[Held]:
    """A session of each, numbered from 0, the idlest first."""
    return [Held(session_id, tenant, amount) for session_id, tenant in enumerate(tenants)]


def test_with_one_tenant_the_idlest_go() -> None:
    share = FairShare()

    assert share.choose(held("a", "a", "a"), needed=(), short=1) == [0]
    assert share.choose(held("a", "a", "a"), needed=(0,), short=2, asking="a") == [1, 2]
    assert share.choose([Held(0, "a", 0), Held(1, "a", 9)], needed=(), short=1) == [1]


def test_none_goes_where_all_would_not_be_enough() -> None:
    assert FairShare().choose(held("a", "a", "b"), needed=(0,), short=3) == []
    assert FairShare().choose([], needed=(), short=1) == []


def test_those_of_the_tenant_that_holds_the_most_go() -> None:
    assert FairShare().choose(held("modest", "greedy", "greedy"), needed=(), short=1) == [1]
    assert FairShare().choose(held("a", "b", "b", "a"), needed=(), short=1) == [0]
    assert FairShare().choose(held("a", "a", "b", "b", "b", "b"), (), short=4) == [2, 3, 0, 4]


def test_a_tenants_weight_is_what_it_may_hold_more_than_others() -> None:
    sessions = held("heavy", "heavy", "heavy", "light", "light")

    assert FairShare().choose(sessions, needed=(), short=1) == [0]
    assert FairShare({"heavy": 2.0}).choose(sessions, needed=(), short=1) == [3]


def test_it_is_amounts_that_count() -> None:
    sessions = [Held(0, "short", 10), Held(1, "short", 10), Held(2, "long", 30)]

    assert FairShare().choose(sessions, needed=(), short=5) == [2]


def test_who_holds_more_gets_nothing_from_those_that_hold_less() -> None:
    sessions = held("modest", "greedy", "greedy")

    assert FairShare().choose(sessions, needed=(1, 2), short=1, asking="greedy") == []
    assert FairShare().choose(sessions, needed=(2,), short=1, asking="greedy") == [1]
    assert FairShare().choose(sessions, needed=(0, 1), short=1, asking="modest") == [2]
