"""What of the drawn tokens that arrive was not seen before.

A draft sends what it has of a continuation, and later the same with more tokens. An audit may count
a draw once only: the second time it is no surprise.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from specray.types import Proposal

_MOST_KEPT = 65_536  # proposals; a longer one comes a step later or two


class _Seen(NamedTuple):
    num_tokens: int
    digest: bytes  # of them and of what they were drawn from


class Repeats:
    """Knows the latest proposals of one source by what they extend; the oldest are forgotten."""

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        """Keeps some 400 bytes for each of so many proposals."""
        self._seen: OrderedDict[tuple[int, int, int, int], _Seen] = OrderedDict()
        self._most_kept = most_kept

    def new_part(self, proposal: Proposal) -> Proposal:
        """What the proposal says beyond the latest that extended the same, if it goes on with that.

        All of it if it says anything else, or answers another commit: then it was drawn anew, and
        to leave out what happens to be equal would bias the audit. So a draft draws once for each
        outcome of a commit. How much is new does not depend on the new tokens.
        """
        key = (
            proposal.session_id,
            proposal.position,
            proposal.last_token_id,
            proposal.commit_sent_at_ns,
        )
        before = self._seen.pop(key, None)
        num_tokens = len(proposal.token_ids)
        self._seen[key] = _Seen(num_tokens, _digest(proposal))
        if len(self._seen) > self._most_kept:
            self._seen.popitem(last=False)
        if before is None or before.num_tokens > num_tokens:
            return proposal
        beginning = proposal.prefix(before.num_tokens)
        return proposal.rest(before.num_tokens) if _digest(beginning) == before.digest else proposal


def _digest(proposal: Proposal) -> bytes:
    hashed = blake2b(np.array(proposal.token_ids, np.int32).tobytes(), digest_size=16)
    if proposal.distributions is not None:
        hashed.update(proposal.distributions.token_ids.tobytes())
        hashed.update(proposal.distributions.probabilities.tobytes())
    return hashed.digest()
