"""One forward pass over whatever is drafted ahead, for all sessions."""

from collections.abc import Callable, Collection, Sequence

from specray.control.batch_cost import BatchCost
from specray.draft.branch import Branch
from specray.draft.decoding import Batch, Decoder
from specray.draft.followed import Followed
from specray.draft.kv_pool import KvPool
from specray.draft.language_model import LanguageModel
from specray.draft.outcomes import OutcomeModel
from specray.draft.pass_plan import Choice, PassPlan
from specray.types import Proposal, TruncatedDistributions

_MEMORY, _SURPRISE = 0.99, 2.0  # of passes' times: some 100 count, and none for more than that
_STALE = 8.0  # times what a pass took: what had been expected is of passes that were no such ones
_MAX_ROWS = {"cpu": 16}  # of a pass, whose time is what a commit may have to wait
_MAX_ROWS_ELSEWHERE = 128


class AheadPass:
    """Grows branches by a token a pass, and begins new ones, as `PassPlan` chooses."""

    def __init__(
        self,
        model: LanguageModel,
        decoder: Decoder,
        pool: KvPool,
        outcomes: OutcomeModel,
        fan_out: int,
        clock: Callable[[], float],
    ) -> None:
        """See `DraftAhead`."""
        self._model = model
        self._pool = pool
        self._most_fan_out = fan_out
        self._decoder = decoder
        self._clock = clock
        self._max_length = min(model.max_positions, pool.capacity)
        self._max_rows = _MAX_ROWS.get(model.device.type, _MAX_ROWS_ELSEWHERE)
        self._cost = BatchCost(_MEMORY)  # of passes, by their tokens
        self._plan = PassPlan(outcomes, self._cost, fan_out)
        self.computed_for: Collection[int] = ()  # sessions of the latest pass; each row's

    def limit_fan_out(self, most: int) -> None:
        """Begin at most so many branches per session from now on; from any thread."""
        self._plan.fan_out = min(self._most_fan_out, most)

    def expected_s(self, num_tokens: int) -> float:
        """How long a pass takes; 0 before anything is known."""
        return self._cost.expected_s(num_tokens)

    def skip(self) -> None:
        """No pass is run this time."""
        self.computed_for = ()

    @property
    def usual_s(self) -> float:
        """How long passes take on average; 0 before anything is known."""
        return self._cost.mean_s

    def run(
        self, sessions: Collection[Followed], left_s: float, loss: float
    ) -> list[Proposal] | None:
        """Computes one more token of what is worth most; what is complete is to be sent.

        Args:
            sessions: whose outcomes to draft for.
            left_s: longest that the pass should take.
            loss: tokens that a pass costs, over the square of its seconds.

        Returns:
            None if there was nothing worth computing.
        """
        began_s = self._clock()
        self.computed_for = ()
        feedable = [followed for followed in sessions if self._makes_feedable(followed)]
        most = self._most_rows(sessions)
        while chosen := self._plan.choose(sessions, feedable, most, left_s, loss):
            feeding = [item for item in chosen if isinstance(item, Followed)]
            begun = [self._begin(item) for item in chosen if isinstance(item, Choice)]
            branches = [item for item in (*chosen, *begun) if isinstance(item, Branch)]
            if feeding or branches:
                num_tokens = sum(followed.num_to_feed for followed in feeding) + len(branches)
                self._compute(feeding, branches)
                self._learn(num_tokens, self._clock() - began_s)
                return [branch.send() for branch in branches if branch.is_complete]
        return None

    def _most_rows(self, sessions: Collection[Followed]) -> int:
        """Copies take no more memory than the sessions may."""
        if not self._model.copies_rows:
            return self._max_rows
        longest = max((f.stop + f.session.depth + 1 for f in sessions), default=1)
        return min(self._max_rows, max(1, self._pool.capacity // longest))

    def _makes_feedable(self, followed: Followed) -> bool:
        """Makes room for the flight's tokens where what may follow them is not computed yet.

        Returns whether it can be now; where there is no room, that is noted and not tried again.
        """
        if followed.flight.has_bonus or not followed.takes_bonus:
            return False
        session, stop = followed.session, followed.stop
        grown = self._pool.grow(session.states, stop) if stop <= self._max_length else None
        if grown is None:
            followed.takes_bonus = False
            return False
        session.states = grown
        return True

    def _begin(self, choice: Choice) -> Branch | None:
        """A new branch; where there is no room for it, its outcome is left out from now on."""
        followed, probability, num_accepted, added = choice
        session, start = followed.session, len(followed.session)
        depth = min(session.depth, self._max_length - start - num_accepted)
        tail = self._pool.grow(self._pool.empty(), depth) if depth > 0 else None
        if tail is None:
            followed.left_out |= {(start + num_accepted + 1, added)}
            return None
        branch = Branch(session, start, num_accepted, added, probability, depth, tail)
        followed.branches[branch.key] = branch
        return branch

    def _compute(self, feeding: Sequence[Followed], branches: Sequence[Branch]) -> None:
        """Hands out what is drawn for each place, and from what."""
        token_ids, drawn = self._draw(feeding, branches)
        num_taken = 0
        for followed in feeding:
            num_scored = followed.num_unscored
            followed.take_scores(drawn, num_taken)
            num_taken += num_scored
        for row, branch in enumerate(branches, start=num_taken):
            branch.append(token_ids[row], drawn.token_ids[row], drawn.probabilities[row])

    def _learn(self, num_tokens: int, seconds: float) -> None:
        """Learns how long passes take, hardly from one that had to wait for its core.

        One that is far quicker shows that nothing is known: the earlier ones made kernels. Without
        that, passes would not be begun for long that are worth it.
        """
        expected_s = self.expected_s(num_tokens) or seconds
        if seconds < expected_s / _STALE:
            self._cost.forget()
        self._cost.observe(num_tokens, min(seconds, _SURPRISE * expected_s))

    def _draw(
        self, feeding: Sequence[Followed], branches: Sequence[Branch]
    ) -> tuple[list[int], TruncatedDistributions]:
        """What is drawn for each place, and from what: [scored], [scored, support]."""
        sessions = [f.session for f in feeding] + [branch.session for branch in branches]
        self.computed_for = [session.session_id for session in sessions]
        num_scored = [f.num_unscored for f in feeding] + [1] * len(branches)
        batch = Batch(
            [f.row() for f in feeding] + [branch.row() for branch in branches],
            [f.to_feed() for f in feeding] + [[b.next_token_id] for b in branches],
            [session.sampling for session in sessions],
            [1] * len(sessions),
            shows_distributions=True,
            num_scored=num_scored if max(num_scored) > 1 else (),
        )
        decoded = self._decoder.decode(batch)
        drawn = TruncatedDistributions(decoded.supports[:, 0], decoded.probabilities[:, 0])
        return decoded.token_ids[:, 0].tolist(), drawn
