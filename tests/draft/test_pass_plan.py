"""What passes begin for sessions that share them."""

import math

import numpy as np
import torch

from specray.config import MAX_FAN_OUT
from specray.control.batch_cost import BatchCost
from specray.draft.branch import Branch
from specray.draft.followed import Followed
from specray.draft.model_session import ModelSession
from specray.draft.outcomes import InFlight, OutcomeModel
from specray.draft.pace import Rhythm
from specray.draft.pass_plan import Choice, PassPlan
from specray.target.buffer import ProposalBuffer, Verdict
from specray.types import OpenSession, Proposal, SamplingSettings, TruncatedDistributions

DEPTH, SUPPORT = 4, 32
PROMPT = (1, 2, 3)
NO_MEMORY = torch.zeros(0)


def followed(session_id: int, q: np.ndarray) -> Followed:  # [support]
    """A proposal is out of which each token was drawn from `q`, and what follows it is known."""
    sampling = SamplingSettings(temperature=1.0)
    opened = OpenSession(session_id, PROMPT, len(PROMPT), sampling, DEPTH)
    num = DEPTH + 1
    candidates = TruncatedDistributions(
        np.tile(np.arange(len(q), dtype=np.int32), (num, 1)),
        np.tile(q.astype(np.float32), (num, 1)),
    )
    flight = InFlight((0,) * DEPTH, candidates, was_ahead=False)
    session = ModelSession(opened, NO_MEMORY)
    return Followed(session, flight, DEPTH, is_answered=True, rhythm=Rhythm())


def flat(session_id: int) -> Followed:
    """So many outcomes are likely enough that a target could not hold them all."""
    return followed(session_id, np.full(SUPPORT, 1 / SUPPORT))


def steep(session_id: int) -> Followed:
    """What is proposed is all that there is, so that only what follows it is open."""
    return followed(session_id, np.eye(SUPPORT)[0])


def begun(fan_out: int, *sessions: Followed, most: int = 16) -> list[Choice]:
    """What passes begin, of so many rows each, until there is no more; nothing has to leave."""
    plan, choices = PassPlan(OutcomeModel(), BatchCost(), fan_out), []
    while chosen := plan.choose(sessions, [], most, math.inf, 0.0):
        for choice in chosen:
            assert isinstance(choice, Choice)
            one, probability, k, added = choice
            start = len(one.session)
            branch = Branch(one.session, start, k, added, probability, 1, NO_MEMORY, is_closed=True)
            one.branches[branch.key] = branch
            choices.append(choice)
    return choices


def test_what_one_session_leaves_is_anothers() -> None:
    sharp, vague = steep(1), flat(2)
    begun(20, sharp, vague)
    assert len(sharp.branches) == 1
    assert len(vague.branches) == 2 * 20 - 1


def test_no_session_gets_more_than_its_target_holds() -> None:
    """However little the others of its draft need, and though it has more likely outcomes."""
    sharp, vague = steep(1), flat(2)
    choices = begun(MAX_FAN_OUT, sharp, vague)
    assert len(sharp.branches) == 1
    assert len(vague.branches) == MAX_FAN_OUT

    buffer = ProposalBuffer(SUPPORT, DEPTH)
    buffer.open(2, "router", len(PROMPT), PROMPT[-1])
    sent = list(vague.branches.values())
    for branch in sent:
        proposal = Proposal(2, branch.position, branch.added, (5,), "model")
        assert buffer.offer(proposal, "router") is Verdict.KEPT
    assert sent[0].probability == max(c.probability for c in choices if c.followed is vague)
    assert sent[0].position == len(PROMPT) + 1
    buffer.advance(2, (sent[0].added,))
    assert buffer.peek(2) is not None


def test_a_pass_of_many_rows_gives_one_session_no_more_either() -> None:
    vague = flat(1)
    begun(MAX_FAN_OUT, vague, *map(steep, range(2, 6)), most=10 * MAX_FAN_OUT)
    assert len(vague.branches) == MAX_FAN_OUT


def test_outcomes_are_begun_by_falling_probability() -> None:
    probabilities = [choice.probability for choice in begun(40, flat(1), flat(2))]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len(set(probabilities)) > 1
