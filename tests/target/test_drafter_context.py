"""What a drafter has missed is known, block by block of the prefix cache."""

from types import SimpleNamespace
from typing import Any

from specray.target.drafter_context import DrafterContext

BLOCK = 4


def step(
    new: dict[str, tuple[list[int], int]] | None = None,
    old: dict[str, tuple[list[int], int]] | None = None,
    back: dict[str, tuple[list[int], int]] | None = None,
) -> Any:
    """Request -> its new blocks and the tokens that it had; those of one that is back are all."""
    cached = (old or {}) | (back or {})
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=r, block_ids=(ids,), num_computed_tokens=num)
            for r, (ids, num) in (new or {}).items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            resumed_req_ids=set(back or ()),
            new_block_ids=[(ids,) if ids else None for ids, _ in cached.values()],
            num_computed_tokens=[num for _, num in cached.values()],
        ),
    )


class Engine:
    """Blocks of requests, and a drafter that runs or rests."""

    def __init__(self, *, is_kept: bool = True) -> None:
        self.context = DrafterContext(BLOCK, lambda r: (self.blocks[r],), is_kept=is_kept)
        self.blocks: dict[str, list[int]] = {}

    def run(self, output: Any, *, is_drafting: bool) -> set[int]:
        found = self.context.admit(output)
        for new in output.scheduled_new_reqs:
            self.blocks[new.req_id] = list(new.block_ids[0])
        old = output.scheduled_cached_reqs
        for request_id, block_ids in zip(old.req_ids, old.new_block_ids, strict=True):
            if request_id in old.resumed_req_ids:
                self.blocks[request_id] = []
            self.blocks[request_id] += block_ids[0] if block_ids else []
        self.context.note(output, is_drafting=is_drafting)
        return found


def test_a_request_that_it_has_missed_nothing_of_is_not_behind() -> None:
    engine = Engine()
    engine.run(step(new={"a": ([1, 2], 0)}), is_drafting=True)
    engine.run(step(old={"a": ([], 8)}), is_drafting=True)
    assert not engine.context.is_behind("a")


def test_one_step_without_it_is_enough() -> None:
    engine = Engine()
    engine.run(step(new={"a": ([1, 2], 0), "b": ([3], 0)}), is_drafting=True)
    engine.run(step(old={"a": ([], 8)}), is_drafting=False)
    engine.run(step(old={"a": ([], 9), "b": ([], 3)}), is_drafting=True)
    assert engine.context.is_behind("a")
    assert not engine.context.is_behind("b")
    engine.context.forget("a")
    assert not engine.context.is_behind("a")


def test_who_finds_missed_blocks_in_the_cache_is_behind_and_they_are_told() -> None:
    engine = Engine()
    engine.run(step(new={"a": ([1, 2, 3], 0)}), is_drafting=False)
    assert engine.run(step(new={"b": ([1, 2, 7], 8)}), is_drafting=True) == {1, 2}
    assert engine.context.is_behind("b")
    assert engine.run(step(new={"c": ([9, 8], 0)}), is_drafting=True) == set()
    assert not engine.context.is_behind("c")


def test_blocks_are_missed_from_the_one_on_that_is_being_filled() -> None:
    engine = Engine()
    engine.run(step(new={"a": ([1, 2, 3], 0)}), is_drafting=True)
    engine.run(step(old={"a": ([], 10)}), is_drafting=False)  # within the third
    engine.run(step(old={"a": ([4], 12)}), is_drafting=True)
    assert engine.run(step(new={"b": ([1, 2, 8], 8)}), is_drafting=True) == set()
    assert engine.run(step(new={"c": ([1, 2, 3, 8], 12)}), is_drafting=True) == {3}
    assert engine.run(step(new={"d": ([1, 2, 3, 4, 8], 16)}), is_drafting=True) == {3, 4}


def test_blocks_that_are_written_anew_are_missed_no_longer() -> None:
    engine = Engine()
    engine.run(step(new={"a": ([1, 2], 0)}), is_drafting=False)
    engine.run(step(new={"b": ([2, 1], 0)}), is_drafting=True)
    engine.run(step(old={"b": ([], 8)}), is_drafting=True)
    assert engine.run(step(new={"c": ([2, 1, 5], 8)}), is_drafting=True) == set()
    assert not engine.context.is_behind("c")


def test_who_was_driven_out_and_computed_anew_has_caught_up() -> None:
    engine = Engine()
    engine.run(step(new={"a": ([1, 2], 0)}), is_drafting=False)
    engine.run(step(back={"a": ([5, 6], 0)}), is_drafting=True)
    assert not engine.context.is_behind("a")
    engine.run(step(new={"b": ([7], 0)}), is_drafting=False)
    engine.run(step(back={"b": ([7, 8], 4)}), is_drafting=True)
    assert engine.context.is_behind("b")


def test_long_prefixes_are_not_computed_anew() -> None:
    engine = Engine()
    blocks = list(range(600))
    engine.run(step(new={"a": (blocks, 0)}), is_drafting=False)
    assert engine.run(step(new={"b": (blocks, 2400)}), is_drafting=True) == set()
    assert engine.context.is_behind("b")


def test_a_long_prefix_whose_end_alone_is_missed_is_computed_anew() -> None:
    engine = Engine()
    blocks = list(range(1, 700))
    engine.run(step(new={"a": (blocks, 0)}), is_drafting=True)
    engine.run(step(old={"a": ([700], 2796)}), is_drafting=False)
    found = engine.run(step(new={"b": ([*blocks, 700, 701], 2800)}), is_drafting=True)
    assert found == {700}


def test_nothing_is_computed_anew_while_the_drafter_can_not_run() -> None:
    """It would be missed again, and taken out again."""
    engine = Engine()
    engine.run(step(new={"a": ([1, 2], 0)}), is_drafting=False)
    failed = step(new={"long": ([5, 6], 0)})
    engine.run(failed, is_drafting=True)
    engine.context.note_failure(failed)
    assert engine.context.is_behind("long")
    assert engine.run(step(new={"b": ([1, 2, 7], 8)}), is_drafting=True) == set()
    engine.context.note_success()
    assert engine.run(step(new={"c": ([1, 2, 8], 8)}), is_drafting=True) == {1, 2}
    assert engine.run(step(new={"d": ([5, 6, 9], 8)}), is_drafting=True) == {5, 6}


def test_vllms_null_block_tells_nothing() -> None:
    engine = Engine()
    engine.run(step(new={"a": ([0, 0, 3], 0)}), is_drafting=False)
    assert engine.run(step(new={"b": ([0, 0, 4], 8)}), is_drafting=True) == set()
    assert not engine.context.is_behind("b")


def test_what_keeps_no_context_is_never_behind() -> None:
    engine = Engine(is_kept=False)
    engine.run(step(new={"a": ([1], 0)}), is_drafting=False)
    assert engine.run(step(new={"b": ([1, 2], 4)}), is_drafting=True) == set()
    assert not engine.context.is_behind("a")
    assert not engine.context.is_behind("b")
