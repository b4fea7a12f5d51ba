from specray.config import PromptLookupConfig
from specray.draft.prompt_lookup import PromptLookup
from specray.types import Commit, OpenSession, SamplingSettings


def test_it_proposes_what_followed_as_point_masses() -> None:
    proposer = PromptLookup(PromptLookupConfig(min_ngram=2, max_ngram=4))
    sampled = SamplingSettings(temperature=1.0)
    proposer.open(OpenSession(1, (5, 6, 7, 8, 9, 1), 6, sampled, depth=3))
    proposer.commit(Commit(1, 6, (5, 6), depth=3, sent_at_ns=4))
    (proposal,) = proposer.propose([1])
    assert (proposal.token_ids, proposal.distributions) == ((7, 8, 9), None)
    assert proposal.source == "prompt_lookup"


def test_it_learns_from_what_was_committed() -> None:
    proposer = PromptLookup(PromptLookupConfig(min_ngram=2, max_ngram=4))
    proposer.open(OpenSession(1, (5,), 1, SamplingSettings(), depth=2))
    proposer.commit(Commit(1, 1, (6, 7, 8, 5), depth=2, sent_at_ns=0))
    assert proposer.propose([1])[0].token_ids == ()
    proposer.commit(Commit(1, 5, (6,), depth=2, sent_at_ns=0))
    assert proposer.propose([1])[0].token_ids == (7, 8)
