"""Which routers' drafts can be believed about what their tokens are drawn from.

Rejection sampling of a token needs the distribution that it was drawn from. A draft ships that, and
an audit of all that came through a router finds out, over many tokens, whether it is true.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from specray.sampling.audit import DistributionAudit, SecretScores
from specray.target.repeats import Repeats
from specray.target.soundness import stacked
from specray.types import Proposal

logger = logging.getLogger(__name__)


class RouterTrust:
    """An audit for each router; called by the stream server's thread, `trusts` by any."""

    def __init__(self, vocab_size: int) -> None:
        self._scores = SecretScores(vocab_size, np.random.default_rng())
        # Outlive streams: no fresh start for liars.
        self._audits = defaultdict[str, DistributionAudit](lambda: DistributionAudit(self._scores))
        self._repeats = defaultdict[str, Repeats](Repeats)

    def trusts(self, router: str) -> bool:
        """Whether the tokens from this router look drawn from the distributions they ship.

        Sampled output is exact only then; without trust the tokens count as point masses.
        """
        audit = self._audits.get(router)
        return audit is None or not audit.is_caught

    def observe(self, router: str, proposals: Sequence[Proposal]) -> None:
        """Proposals came; they were kept or not for when they came, not for what they say."""
        drawn = [p for p in proposals if p.distributions is not None and p.token_ids]
        if not drawn or not self.trusts(router):
            return
        audit, repeats = self._audits[router], self._repeats[router]
        by_support: dict[int, list[Proposal]] = defaultdict(list)
        for new in map(repeats.new_part, drawn):
            if new.distributions is not None and new.token_ids:
                by_support[new.distributions.token_ids.shape[1]].append(new)
        for alike in by_support.values():
            audit.observe(*stacked(alike))
        if audit.is_caught:
            logger.error(
                "tokens through router %s are not drawn from the distributions they ship; from "
                "now on its sampled requests verify them without",
                router,
            )

    def forget_proposals(self, router: str) -> None:
        """Its stream ended: nothing that comes will repeat what has come."""
        self._repeats.pop(router, None)
