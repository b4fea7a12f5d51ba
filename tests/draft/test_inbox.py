from specray.draft.inbox import Arrival, Departure, Inbox
from specray.types import Commit, ProposalFrame, SessionFrame


class Router:
    name = "router"

    def send(self, frame: ProposalFrame) -> None:
        raise AssertionError("the inbox sends nothing")


def arrival(router: Router, *session_ids: int) -> Arrival:
    commits = tuple(Commit(session_id, 1, (2,), 3, 0) for session_id in session_ids)
    return Arrival(router, SessionFrame(commits=commits), 0)


def test_deliveries_keep_their_order() -> None:
    inbox, router = Inbox(), Router()
    deliveries = [arrival(router, 1), Departure(router), arrival(router, 2)]
    for delivery in deliveries:
        inbox.put(delivery)
    assert inbox.take(is_waiting=True) == deliveries
    assert inbox.take(is_waiting=False) == []


def test_a_router_that_overflows_it_loses_all_its_sessions_and_nobody_else_does() -> None:
    inbox, quiet, loud = Inbox(max_frames=3), Router(), Router()
    kept = arrival(quiet, 9)
    inbox.put(arrival(loud, 1))
    inbox.put(kept)
    inbox.put(arrival(loud, 2))
    inbox.put(arrival(loud, 3, 4))
    lost = Departure(loud, frozenset({1, 2, 3, 4}), is_connected=True)
    later = arrival(loud, 5)
    inbox.put(later)
    assert inbox.take(is_waiting=True) == [kept, lost, later]


def test_a_router_that_goes_on_overflowing_keeps_one_entry() -> None:
    inbox, router = Inbox(max_frames=1), Router()
    for session_id in range(5):
        inbox.put(arrival(router, session_id))
    deliveries = inbox.take(is_waiting=True)
    assert deliveries == [Departure(router, frozenset(range(5)), is_connected=True)]


def test_departures_are_never_refused() -> None:
    inbox, router = Inbox(max_frames=1), Router()
    inbox.put(arrival(router, 1))
    inbox.put(Departure(router))
    assert inbox.take(is_waiting=True) == [arrival(router, 1), Departure(router)]


def test_a_closed_inbox_ends_its_reader() -> None:
    inbox = Inbox()
    inbox.close()
    assert inbox.take(is_waiting=True) is None
