import math
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specray.config import MAX_FAN_OUT
from specray.target.buffer import ProposalBuffer, Verdict
from specray.types import Proposal, TruncatedDistributions

VOCAB_SIZE, MAX_DEPTH = 100, 4
PATIENCE_S = 5.0  # of a test, never used up
ROUTER = "r"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rows(ids: Sequence[Sequence[int]], probs: Sequence[Sequence[float]]) -> TruncatedDistributions:
    return TruncatedDistributions(np.array(ids, np.int32), np.array(probs, np.float32))


def proposal(
    position: int = 10,
    last_token_id: int = 7,
    token_ids: tuple[int, ...] = (1, 2),
    distributions: TruncatedDistributions | None = None,
    session_id: int = 1,
    confidences: tuple[float, ...] = (),
) -> Proposal:
    return Proposal(
        *(session_id, position, last_token_id, token_ids, "model", distributions),
        confidences=confidences,
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def buffer(clock: Clock) -> ProposalBuffer:
    """Session 1 is 10 tokens long and ends in a 7."""
    buffer = ProposalBuffer(VOCAB_SIZE, MAX_DEPTH, clock)
    buffer.open(1, ROUTER, 10, 7)
    return buffer


def test_what_extends_the_request_is_taken_once(buffer: ProposalBuffer, clock: Clock) -> None:
    clock.now = 3.0
    offered = proposal()

    assert buffer.offer(offered, ROUTER) is Verdict.KEPT
    assert buffer.peek(1) is offered
    assert buffer.take(1) == (offered, 3.0)
    assert buffer.take(1) is None
    assert buffer.peek(1) is None


def test_a_newer_proposal_replaces_an_older_one(buffer: ProposalBuffer) -> None:
    buffer.offer(proposal(token_ids=(1,)), ROUTER)
    buffer.offer(proposal(token_ids=(2,)), ROUTER)

    arrival = buffer.take(1)
    assert arrival is not None
    assert arrival.proposal.token_ids == (2,)
    assert buffer.take(1) is None


@pytest.mark.parametrize(
    ("offered", "verdict"),
    [
        (proposal(position=9), Verdict.LATE),
        (proposal(position=0), Verdict.LATE),
        (proposal(position=-1), Verdict.LATE),
        (proposal(last_token_id=8), Verdict.STALE),
        (proposal(position=10 + MAX_DEPTH + 2), Verdict.STALE),
        (proposal(position=10**9), Verdict.STALE),
        (proposal(session_id=2), Verdict.STALE),
        (proposal(session_id=2**64 - 1), Verdict.STALE),
        (proposal(token_ids=(1, VOCAB_SIZE)), Verdict.INVALID),
        (proposal(token_ids=(-1,)), Verdict.INVALID),
        (proposal(token_ids=(1,), confidences=(-0.1,)), Verdict.INVALID),
        (proposal(token_ids=(1,), confidences=(1.5,)), Verdict.INVALID),
        (proposal(token_ids=(1,), confidences=(math.nan,)), Verdict.INVALID),
        (proposal(token_ids=(1,), confidences=(math.inf,)), Verdict.INVALID),
        (proposal(token_ids=(1, 2), confidences=(0.0, 1.0)), Verdict.KEPT),
        (proposal(token_ids=(2**32 - 1,)), Verdict.INVALID),
        (proposal(token_ids=(1,) * (MAX_DEPTH + 1)), Verdict.INVALID),
        (proposal(token_ids=()), Verdict.KEPT),
        (proposal(token_ids=(0, VOCAB_SIZE - 1)), Verdict.KEPT),
        (proposal(token_ids=(1,) * MAX_DEPTH), Verdict.KEPT),
        (proposal(position=10 + MAX_DEPTH + 1, last_token_id=55), Verdict.KEPT),
    ],
)
def test_each_proposal_is_judged(
    buffer: ProposalBuffer, offered: Proposal, verdict: Verdict
) -> None:
    assert buffer.offer(offered, ROUTER) is verdict
    taken = buffer.take(offered.session_id)
    is_current = verdict is Verdict.KEPT and offered.position == 10
    assert (taken is not None) == is_current


@pytest.mark.parametrize(
    "distributions",
    [
        rows([[1, 5], [2, 5]], [[0.5, 0.5], [1.0, 0.0]]),
        rows([[1, 0, 0], [2, 3, 0]], [[1, 0, 0], [0.25, 0.75, 0]]),  # unused columns repeat
        rows([[1], [2]], [[1.0005], [0.9995]]),  # float32 that was summed elsewhere
    ],
)
def test_sound_distributions_are_kept(
    buffer: ProposalBuffer, distributions: TruncatedDistributions
) -> None:
    assert buffer.offer(proposal(distributions=distributions), ROUTER) is Verdict.KEPT


@pytest.mark.parametrize(
    "distributions",
    [
        rows([[1, 5]], [[0.5, 0.5]]),  # one row for two tokens
        rows([[1, 5], [2, 5]], [[0.5, 0.4], [1, 0]]),
        rows([[1, 5], [2, 5]], [[0.5, 0.6], [1, 0]]),
        rows([[1, 5], [2, 5]], [[1.5, -0.5], [1, 0]]),
        rows([[1, 5], [2, 5]], [[np.nan, 1], [1, 0]]),
        rows([[1, 5], [2, 5]], [[np.inf, 0], [1, 0]]),
        rows([[1, 5], [2, 5]], [[3e38, 3e38], [1, 0]]),
        rows([[4, 5], [2, 5]], [[0.5, 0.5], [1, 0]]),  # can't have drawn a 1
        rows([[1, 5], [2, 5]], [[0, 1], [1, 0]]),
        rows([[1, 1], [2, 5]], [[0.5, 0.5], [1, 0]]),  # a token twice
        rows([[1, 5, 5], [2, 5, 6]], [[0.5, 0.25, 0.25], [1, 0, 0]]),
        rows([[1, VOCAB_SIZE], [2, 5]], [[1, 0], [1, 0]]),
        rows([[1, -1], [2, 5]], [[0.5, 0.5], [1, 0]]),
        rows([[], []], [[], []]),
    ],
)
def test_impossible_distributions_are_not(
    buffer: ProposalBuffer, distributions: TruncatedDistributions
) -> None:
    assert buffer.offer(proposal(distributions=distributions), ROUTER) is Verdict.INVALID
    assert buffer.take(1) is None


def test_matrices_of_different_widths_are_not_kept(buffer: ProposalBuffer) -> None:
    q = TruncatedDistributions(np.array([[1, 2], [2, 3]], np.int32), np.ones((2, 1), np.float32))

    assert buffer.offer(proposal(distributions=q), ROUTER) is Verdict.INVALID


@pytest.mark.parametrize("happens", [20, 21, 22])
def test_continuations_of_several_outcomes_wait_for_the_one_that_happens(
    buffer: ProposalBuffer, happens: int
) -> None:
    for last in (20, 21, 22):
        assert buffer.offer(proposal(12, last, (last,)), ROUTER) is Verdict.KEPT
    assert buffer.take(1) is None

    buffer.advance(1, (50, happens))

    arrival = buffer.take(1)
    assert arrival is not None
    assert arrival.proposal.token_ids == (happens,)


def test_what_was_overtaken_is_not_taken(buffer: ProposalBuffer) -> None:
    buffer.offer(proposal(11, 3), ROUTER)
    buffer.advance(1, (3, 4))

    assert buffer.take(1) is None


def test_a_session_holds_a_bounded_number_and_drops_the_oldest(buffer: ProposalBuffer) -> None:
    kept = []
    for happens in range(200):
        buffer.open(happens, ROUTER, 10, 7)
        for last in range(200):
            buffer.offer(proposal(11, last, session_id=happens), ROUTER)
        buffer.advance(happens, (happens,))
        kept.append(buffer.peek(happens) is not None)
    assert MAX_FAN_OUT <= sum(kept) <= MAX_FAN_OUT + 5 * (MAX_DEPTH + 1)
    assert all(kept[-4 * (MAX_DEPTH + 1) :])


@pytest.mark.parametrize("max_depth", [1, 2, 16])
def test_all_outcomes_that_a_draft_may_prepare_have_room(max_depth: int) -> None:
    buffer = ProposalBuffer(VOCAB_SIZE, max_depth)
    buffer.open(1, ROUTER, 10, 7)
    for last in range(MAX_FAN_OUT):
        buffer.offer(proposal(11, last, (7,)), ROUTER)

    buffer.advance(1, (0,))  # the first that came
    assert buffer.peek(1) is not None


def test_a_proposal_that_is_repeated_is_not_the_oldest(buffer: ProposalBuffer) -> None:
    for last in range(80):
        if last % 40 == 0:
            buffer.offer(proposal(), ROUTER)
        buffer.offer(proposal(11, last), ROUTER)

    assert buffer.peek(1) is not None


def test_continuations_never_push_out_the_proposal_they_continue(buffer: ProposalBuffer) -> None:
    buffer.offer(proposal(), ROUTER)
    for last in range(1000):
        buffer.offer(proposal(11, last), ROUTER)
    assert buffer.peek(1) is not None


def test_only_the_sessions_own_router_may_propose(buffer: ProposalBuffer) -> None:
    assert buffer.offer(proposal(), "another") is Verdict.STALE
    assert buffer.peek(1) is None
    assert not buffer.take_sign_of_life(1)
    assert buffer.lose("another", [1]) == []


def test_a_session_that_moves_forgets_what_its_router_sent_before(buffer: ProposalBuffer) -> None:
    """Also what was drafted ahead, and the rest of what a step verifies."""
    buffer.offer(proposal(token_ids=(1, 2, 3)), ROUTER)
    buffer.offer(proposal(11, 9), ROUTER)
    buffer.take(1)
    buffer.move(1, "another")

    assert buffer.offer(proposal(), ROUTER) is Verdict.STALE
    assert buffer.offer(proposal(token_ids=(4,)), "another") is Verdict.KEPT
    buffer.take(1)
    buffer.advance(1, (9,))
    assert buffer.peek(1) is None
    buffer.open(1, ROUTER, 10, 7)
    buffer.offer(proposal(token_ids=(1, 2, 3)), ROUTER)
    buffer.take(1)
    buffer.move(1, "another")
    buffer.advance(1, (1,))
    assert buffer.peek(1) is None


def test_a_distribution_over_more_tokens_than_any_draft_ships_is_invalid() -> None:
    buffer = ProposalBuffer(1000, MAX_DEPTH)
    buffer.open(1, ROUTER, 10, 7)
    ids = np.arange(300)[None]
    probs = np.full((1, 300), 1 / 300)
    assert buffer.offer(proposal(token_ids=(5,), distributions=rows(ids, probs)), ROUTER) is (
        Verdict.INVALID
    )


def test_a_closed_session_is_gone(buffer: ProposalBuffer) -> None:
    buffer.offer(proposal(), ROUTER)
    assert buffer.lose(ROUTER) == [1]
    buffer.close(1)
    buffer.close(1)

    assert buffer.lose(ROUTER, [1]) == []
    assert buffer.take(1) is None
    assert buffer.peek(1) is None
    assert not buffer.take_sign_of_life(1)
    assert buffer.offer(proposal(), ROUTER) is Verdict.STALE


@pytest.mark.parametrize(
    ("offered", "is_alive"),
    [
        (proposal(position=9), True),
        (proposal(last_token_id=8), True),
        (proposal(position=12), True),
        (proposal(token_ids=(-1,)), False),
        (proposal(position=9, token_ids=(1,) * 50), False),
        (proposal(session_id=2), False),
    ],
)
def test_a_sound_proposal_is_a_sign_of_life_even_if_late(
    buffer: ProposalBuffer, offered: Proposal, is_alive: bool
) -> None:
    assert not buffer.take_sign_of_life(1)
    buffer.offer(offered, ROUTER)

    assert buffer.take_sign_of_life(1) == is_alive
    assert not buffer.take_sign_of_life(1)


@pytest.mark.parametrize(("token_ids", "heard"), [((5,), {ROUTER}), ((-1,), set())])
def test_a_sound_proposal_tells_of_its_router_after_its_sessions_end(
    buffer: ProposalBuffer, token_ids: tuple[int, ...], heard: set[str]
) -> None:
    buffer.offer(proposal(token_ids=token_ids), ROUTER)
    assert not buffer.take_heard()
    buffer.close(1)
    buffer.offer(proposal(token_ids=token_ids), ROUTER)

    assert buffer.take_heard() == heard
    assert not buffer.take_heard()


def test_a_proposal_that_was_taken_is_no_sign_of_life_later(buffer: ProposalBuffer) -> None:
    buffer.offer(proposal(), ROUTER)
    buffer.take(1)

    assert not buffer.take_sign_of_life(1)


def test_nobody_waits_for_what_is_there_or_closed(buffer: ProposalBuffer) -> None:
    buffer.offer(proposal(), ROUTER)

    buffer.wait_for([1, 2], deadline=math.inf)
    buffer.wait_for([], deadline=math.inf)
    assert buffer.is_settled(1)
    assert buffer.is_settled(2)


def test_a_deadline_that_has_passed_ends_the_wait_at_once(
    buffer: ProposalBuffer, clock: Clock
) -> None:
    clock.now = 1.0

    for deadline in (1.0, -1.0, math.nan):
        buffer.wait_for([1], deadline)
    assert not buffer.is_settled(1)


def test_a_wait_ends_at_its_deadline_though_other_proposals_keep_arriving() -> None:
    buffer = ProposalBuffer(VOCAB_SIZE, MAX_DEPTH)
    buffer.open(1, ROUTER, 10, 7)
    buffer.open(2, ROUTER, 10, 7)
    stop = threading.Event()

    def offer_for_another_session() -> None:
        while not stop.is_set():
            buffer.offer(proposal(session_id=2), ROUTER)

    thread = threading.Thread(target=offer_for_another_session)
    thread.start()
    started = time.monotonic()
    buffer.wait_for([1, 2], started + 0.05)
    waited_s = time.monotonic() - started
    stop.set()
    thread.join()

    assert not buffer.is_settled(1)
    assert 0.05 <= waited_s < 0.5


def test_a_wait_ends_with_the_last_proposal_that_is_awaited() -> None:
    buffer = ProposalBuffer(VOCAB_SIZE, MAX_DEPTH)
    buffer.open(1, ROUTER, 10, 7)
    buffer.open(2, ROUTER, 20, 8)
    far = time.monotonic() + 2 * PATIENCE_S
    thread = threading.Thread(target=buffer.wait_for, args=([1, 2], far))
    thread.start()
    buffer.offer(proposal(last_token_id=9), ROUTER)  # stale: wakes nobody for good
    buffer.offer(proposal(), ROUTER)
    assert thread.is_alive()
    buffer.offer(proposal(20, 8, session_id=2), ROUTER)
    thread.join(PATIENCE_S)

    assert not thread.is_alive()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["offer", "advance", "take"]), st.integers(8, 14), st.integers(0, 2)
        ),
        max_size=40,
    )
)
def test_whatever_happens_only_what_extends_the_request_is_taken(
    actions: list[tuple[str, int, int]],
) -> None:
    buffer = ProposalBuffer(VOCAB_SIZE, MAX_DEPTH, Clock())
    state = (8, 0)
    buffer.open(1, ROUTER, *state)
    for action, position, last in actions:
        if action == "offer":
            buffer.offer(proposal(position, last), ROUTER)
        elif action == "advance" and position > state[0]:
            buffer.advance(1, (*[9] * (position - state[0] - 1), last))
            state = (position, last)
        elif action == "take" and (arrival := buffer.take(1)) is not None:
            assert (arrival.proposal.position, arrival.proposal.last_token_id) == state


def test_many_threads_may_offer_while_one_takes() -> None:
    buffer = ProposalBuffer(VOCAB_SIZE, MAX_DEPTH)
    buffer.open(1, ROUTER, 0, 7)
    stop = threading.Event()
    position = 0

    def offer() -> None:
        while not stop.is_set():
            buffer.offer(proposal(position, 7), ROUTER)

    threads = [threading.Thread(target=offer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for position in range(1, 51):
        buffer.advance(1, (7,))
        buffer.wait_for([1], time.monotonic() + PATIENCE_S)
        arrival = buffer.take(1)
        assert arrival is not None
        assert arrival.proposal.position == position
    stop.set()
    for thread in threads:
        thread.join()


def test_a_draft_that_drafted_ahead_for_every_outcome_is_not_waited_for() -> None:
    buffer = ProposalBuffer(vocab_size=100, max_depth=4)
    buffer.open(1, ROUTER, 10, 7)
    assert not buffer.is_settled(1)
    buffer.offer(Proposal(1, 10, 5, (6, 7), "prompt_lookup", covers_outcomes=True), ROUTER)
    buffer.offer(Proposal(1, 12, 8, (9,), "prompt_lookup"), ROUTER)  # if 6 is accepted and 8 added
    buffer.advance(1, (6, 8))
    assert buffer.is_settled(1)
    arrival = buffer.take(1)
    assert arrival is not None
    assert arrival.proposal.token_ids == (9,)
    buffer.offer(Proposal(1, 12, 8, (9,), "prompt_lookup", covers_outcomes=True), ROUTER)
    buffer.advance(1, (50,))  # an outcome that nothing follows: nothing will come
    assert buffer.is_covered(1)
    assert buffer.is_settled(1)
    buffer.advance(1, (51,))  # nothing was said about this one
    assert not buffer.is_settled(1)


def test_coverage_of_a_place_far_ahead_is_not_believed() -> None:
    buffer = ProposalBuffer(vocab_size=100, max_depth=4)
    buffer.open(1, ROUTER, 10, 7)
    buffer.offer(Proposal(1, 10**9, 5, (6,), "prompt_lookup", covers_outcomes=True), ROUTER)
    buffer.offer(Proposal(1, 10, 5, (6,), "prompt_lookup", covers_outcomes=True), ROUTER)
    buffer.advance(1, (50,))
    assert buffer.is_covered(1)


def test_the_rest_of_a_proposal_that_came_too_late_is_kept(buffer: ProposalBuffer) -> None:
    q = rows([[1, 9], [2, 9], [3, 9]], [[0.5, 0.5], [0.6, 0.4], [0.7, 0.3]])
    buffer.advance(1, (1,))
    assert buffer.offer(proposal(token_ids=(1, 2, 3), distributions=q), ROUTER) is Verdict.LATE

    arrival = buffer.take(1)
    assert arrival is not None
    rest = arrival.proposal
    assert (rest.position, rest.last_token_id, rest.token_ids) == (11, 1, (2, 3))
    assert rest.distributions is not None
    np.testing.assert_array_equal(rest.distributions.token_ids, q.token_ids[1:])
    np.testing.assert_array_equal(rest.distributions.probabilities, q.probabilities[1:])


def test_the_rest_of_a_proposal_that_was_not_verified_is_kept(buffer: ProposalBuffer) -> None:
    buffer.offer(proposal(token_ids=(1, 2, 3)), ROUTER)
    buffer.offer(proposal(11, 1, (4,)), ROUTER)  # a whole one is better than a rest
    buffer.advance(1, (1,))
    whole = buffer.peek(1)
    assert whole is not None
    assert whole.token_ids == (4,)
    buffer.advance(1, (2, 3))
    assert buffer.peek(1) is None  # nothing is left


@pytest.mark.parametrize("is_same_draw", [True, False])
def test_a_longer_rest_takes_the_place_of_what_it_goes_on_with(
    buffer: ProposalBuffer, is_same_draw: bool
) -> None:
    """Not of the same token from another distribution: what was drawn may not decide."""
    q = rows([[1, 9], [2, 9], [3, 9]], [[0.5, 0.5], [0.6, 0.4], [0.7, 0.3]])
    other = rows([[1, 9], [2, 9]], [[0.5, 0.5], [0.8, 0.2]])
    part = proposal(token_ids=(1, 2), distributions=q.prefix(2) if is_same_draw else other)
    buffer.offer(part, ROUTER)
    buffer.advance(1, (1,))  # nothing was verified
    buffer.offer(proposal(token_ids=(1, 2, 3), distributions=q), ROUTER)
    rest = buffer.peek(1)
    assert rest is not None
    assert rest.token_ids == ((2, 3) if is_same_draw else (2,))


def test_what_goes_on_with_a_part_has_been_there_since_that_came() -> None:
    now = [1.0]
    buffer = ProposalBuffer(vocab_size=100, max_depth=4, clock=lambda: now[0])
    buffer.open(1, ROUTER, 10, 7)
    buffer.offer(proposal(token_ids=(1,)), ROUTER)
    now[0] = 2.0
    buffer.offer(proposal(token_ids=(1, 2)), ROUTER)
    arrival = buffer.take(1)
    assert arrival is not None
    assert (arrival.at, arrival.proposal.token_ids) == (1.0, (1, 2))
    buffer.offer(proposal(token_ids=(1, 2)), ROUTER)
    now[0] = 3.0
    buffer.offer(proposal(token_ids=(3, 4, 5)), ROUTER)  # another
    another = buffer.take(1)
    assert another is not None
    assert another.at == 3.0


@pytest.mark.parametrize(
    ("late", "added"),
    [
        (proposal(token_ids=(1, 2)), (5,)),
        (proposal(token_ids=(1, 2)), (1, 2)),
        (proposal(token_ids=(1, 2, 3)), (1, 4)),
        (proposal(last_token_id=8, token_ids=(1, 2)), (1,)),
        (proposal(9, 7, (7, 1, 2)), (1,)),
    ],
    ids=["another token", "nothing left", "second token differs", "last differs", "too old"],
)
def test_what_does_not_agree_with_the_request_has_no_rest(
    buffer: ProposalBuffer, late: Proposal, added: tuple[int, ...]
) -> None:
    buffer.advance(1, added)
    buffer.offer(late, ROUTER)
    assert buffer.peek(1) is None


def test_an_empty_proposal_replaces_none(buffer: ProposalBuffer) -> None:
    offered = proposal()
    buffer.offer(offered, ROUTER)
    buffer.offer(proposal(token_ids=()), ROUTER)
    assert buffer.peek(1) is offered


def test_answers_count_as_such_however_late(buffer: ProposalBuffer) -> None:
    assert not buffer.was_answered(1, 10)
    buffer.offer(proposal(last_token_id=8), ROUTER)
    buffer.offer(proposal(12, 3), ROUTER)
    buffer.advance(1, (5,))
    assert not buffer.was_answered(1, 10)
    buffer.offer(proposal(token_ids=(4, 4)), ROUTER)
    assert buffer.was_answered(1, 10)
    assert not buffer.was_answered(1, 11)


def test_the_rest_of_a_proposal_whose_beginning_was_verified_is_kept(
    buffer: ProposalBuffer,
) -> None:
    """The target took two of its tokens, accepted them, and chose the third itself."""
    q = rows([[1, 4], [2, 4], [3, 4], [5, 4]], [[0.5, 0.5]] * 4)
    confidences = (0.9, 0.8, 0.7, 0.6)
    buffer.offer(proposal(token_ids=(1, 2, 3, 5), distributions=q, confidences=confidences), ROUTER)
    buffer.take(1)
    buffer.advance(1, (1, 2, 3))

    arrival = buffer.take(1)
    assert arrival is not None
    assert arrival.proposal.token_ids == (5,)
    assert arrival.proposal.distributions is not None
    assert arrival.proposal.distributions.token_ids.tolist() == [[5, 4]]
    assert arrival.proposal.confidences == (0.6,)


def test_what_was_verified_and_rejected_leaves_nothing(buffer: ProposalBuffer) -> None:
    buffer.offer(proposal(token_ids=(1, 2, 3)), ROUTER)
    buffer.take(1)
    buffer.advance(1, (1, 9))
    assert buffer.take(1) is None
    buffer.advance(1, (3,))
    assert buffer.take(1) is None


@pytest.mark.parametrize("ids", [[1], None], ids=["session", "router"])
def test_a_wait_ends_with_the_draft_that_it_is_for(
    buffer: ProposalBuffer, ids: list[int] | None
) -> None:
    def lose() -> None:
        buffer.lose(ROUTER, ids)
        buffer.wake()

    threading.Timer(0.05, lose).start()
    buffer.wait_for([1], time.monotonic() + 30.0)
    assert buffer.is_settled(1)
    buffer.advance(1, (3,))  # another draft may have it by now
    assert not buffer.is_settled(1)
