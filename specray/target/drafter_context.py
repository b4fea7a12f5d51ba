"""What the engine's own drafter has missed: requests, and blocks of the prefix cache.

A drafter with keys and values of its own has none of tokens that were computed while it did not
run. Its proposals for what follows them are worthless, also for later requests that find the blocks
of such tokens in the cache.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from vllm.v1.core.sched.output import SchedulerOutput

_LONGEST_HEALED = 2048  # tokens of a prefix that are worth computing anew
_NULL_BLOCK = 0  # in vLLM, what stands in for blocks that a group of the cache does not keep

BlockIds = Sequence[Sequence[int]]  # of a request, in each group of the KV cache


class _Part(NamedTuple):
    """What a step computes of a request."""

    request_id: str
    num_before: int  # tokens that were computed before, or found in the cache
    new_block_ids: BlockIds  # that it gets; all that it has if it has just begun
    is_beginning: bool


class DrafterContext:
    """Follows the engine's steps; one of a drafter without context has never missed anything."""

    def __init__(
        self, block_size: int, block_ids_of: Callable[[str], BlockIds], *, is_kept: bool
    ) -> None:
        """Takes the engine's cache, and whether the drafter keeps a context.

        Args:
            block_size: Tokens of a block.
            block_ids_of: All blocks that a request has.
            is_kept: Whether the drafter keeps keys and values of its own.
        """
        self._block_size = block_size
        self._block_ids_of = block_ids_of
        self._is_kept = is_kept
        self._behind: set[str] = set()  # requests
        self._blank: set[int] = set()  # blocks
        self._is_able = True  # whether it could run when it was last to: else nothing is healed

    def is_behind(self, request_id: str) -> bool:
        """Whether the drafter has missed some of the request's tokens."""
        return request_id in self._behind

    def admit(self, output: SchedulerOutput) -> set[int]:
        """Look at what requests that begin in a step have found in the cache.

        Returns:
            Its blocks that the drafter has nothing of, as far as they are worth computing anew.
        """
        found: set[int] = set()
        if not self._is_kept:
            return found
        for part in _parts(output):
            if not part.is_beginning:
                continue
            self._behind.discard(part.request_id)  # it may have been driven out, and come back
            num_cached = part.num_before // self._block_size
            cached = [ids[:num_cached] for ids in part.new_block_ids]
            blank = self._blank.intersection(chain.from_iterable(cached))
            if not blank:
                continue
            self._behind.add(part.request_id)
            num_sound = min(_num_before(ids, blank) for ids in cached)
            if part.num_before - num_sound * self._block_size <= _LONGEST_HEALED:
                found |= blank
        return found if self._is_able else set()

    def note(self, output: SchedulerOutput, *, is_drafting: bool) -> None:
        """A step runs, or has run; the drafter reads its tokens, or does not."""
        if not self._is_kept:
            return
        for part in _parts(output):
            blocks = part.new_block_ids
            if not is_drafting and part.request_id not in self._behind:
                self._behind.add(part.request_id)
                blocks = self._block_ids_of(part.request_id)
            elif not part.is_beginning:
                self._mark(part.request_id, chain.from_iterable(blocks))
                continue
            first = part.num_before // self._block_size
            self._mark(part.request_id, chain.from_iterable(ids[first:] for ids in blocks))

    def note_success(self) -> None:
        """The drafter has run."""
        self._is_able = True

    def note_failure(self, output: SchedulerOutput) -> None:
        """The drafter was to run behind a step and could not, as a request is too long for it."""
        self.note(output, is_drafting=False)
        self._is_able = False

    def forget(self, request_id: str) -> None:
        """The request is over; its blocks may stay in the cache."""
        self._behind.discard(request_id)

    def _mark(self, request_id: str, block_ids: Iterator[int]) -> None:
        if request_id in self._behind:
            self._blank.update(block_ids)
            self._blank.discard(_NULL_BLOCK)
        elif self._blank:
            self._blank.difference_update(block_ids)


def _num_before(block_ids: Sequence[int], blank: set[int]) -> int:
    """Blocks in front of the first blank one."""
    return next((i for i, block_id in enumerate(block_ids) if block_id in blank), len(block_ids))


def _parts(output: SchedulerOutput) -> Iterator[_Part]:
    for new in output.scheduled_new_reqs:
        yield _Part(new.req_id, new.num_computed_tokens, new.block_ids, is_beginning=True)
    old = output.scheduled_cached_reqs
    for request_id, num_before, block_ids in zip(
        old.req_ids, old.num_computed_tokens, old.new_block_ids, strict=True
    ):
        is_back = request_id in old.resumed_req_ids
        yield _Part(request_id, num_before, block_ids or (), is_beginning=is_back)
