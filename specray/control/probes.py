"""Who of the requests that are better off at depth 0 is tried with a short proposal, and when."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from specray.control.load_size import is_other_size
from specray.control.probing import ProbeClock
from specray.control.survival import Offer
from specray.types import Source

PROBE_DEPTH = 2
_MOST_PROBED = 4  # requests in a probe: enough to learn from, and cheap


class Probes:
    """All take turns, some in each probe; which step holds one, a clock decides."""

    def __init__(self) -> None:
        self.is_on = False  # whether the latest depths hold a probe
        self.near: frozenset[int] = frozenset()  # offers that are about to be probed
        self._clock = ProbeClock()
        self._turn = self._turn_before = 0  # from which offer on the next probe tries, and did last
        self._load = 1  # requests for which the clock's pauses have grown
        self._is_short = False  # whether the latest probe was of one token

    def begin_step(self, waited_s: float) -> None:
        """Depths are wanted anew; the step before was held back for so long.

        What a probe's was, later ones pay.
        """
        if self.is_on:
            self._clock.charge(waited_s)
        self.is_on, self.near = False, frozenset()

    def settle(self, step_s: float) -> None:
        """Note a step that leaves nobody out."""
        self._clock.settle(step_s)

    def repeat(self) -> None:
        """The latest probe surprised: those are tried again soon, not who comes next."""
        self._clock.reset()
        self._turn = self._turn_before

    def heed_load(self, num_decoding: int, may_pay: Callable[[], bool]) -> None:
        """What did not pay for many requests may for few, and the other way round.

        Not what would not pay without any wait, as a draft that is always wrong: it would be tried
        often wherever requests come and go.
        """
        if is_other_size(num_decoding, self._load) and self._clock.may_hasten:
            self._load = num_decoding
            if may_pay():
                self._clock.hasten()

    def take(
        self,
        left_out: Sequence[int],
        step_s: float,
        cost_s: Callable[[int], float],
        *,
        takes_time: Callable[[], bool],
    ) -> Mapping[int, int]:
        """Offer -> depth of those that are probed; empty where it is not time for that.

        Args:
            left_out: Offers at depth 0, at least one, in order.
            step_s: How long the latest step took.
            cost_s: How much longer one with a probe of so many requests would take.
            takes_time: Whether the second token of a proposal does: every other probe then shows
                how much.
        """
        num_probed = min(len(left_out), _MOST_PROBED)
        self.is_on = self._clock.tick(step_s, lambda: cost_s(num_probed))
        if not self.is_on and not self._clock.is_near:
            return {}
        first = bisect_left(left_out, self._turn)
        probed = [*left_out[first:], *left_out[:first]][:num_probed]
        if not self.is_on:
            self.near = frozenset(probed)  # whose turn it still is when the probe comes
            return {}
        self._turn_before, self._turn = self._turn, probed[-1] + 1
        self._is_short = takes_time() and not self._is_short
        return dict.fromkeys(probed, 1 if self._is_short else PROBE_DEPTH)


def with_probes(
    offers: Sequence[Offer], depths: Sequence[int], max_drafts: int, sources: frozenset[Source]
) -> tuple[int, ...]:
    """The depths, and at least a probe's for offers of some sources, as far as there is room."""
    room = max_drafts - sum(depths)
    probed = []
    for offer, depth in zip(offers, depths, strict=True):
        least = min(PROBE_DEPTH, offer.max_depth) if offer.source in sources else 0
        more = max(0, min(least - depth, room))
        room -= more
        probed.append(depth + more)
    return tuple(probed)
