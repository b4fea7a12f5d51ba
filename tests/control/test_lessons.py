"""When is learnt from what was noted, and what a probe is compared to."""

from specray.control.acceptance import request_acceptance
from specray.control.lessons import Lessons
from specray.control.roofline import StepLoad
from specray.control.step_time import StepTimeModel
from specray.control.survival import Offer

STEP = StepLoad(1, 1, 100)


def offer(depth: int) -> Offer:
    return Offer(request_acceptance(), "model", depth)


def experienced(num_verifications: int = 64) -> Lessons:
    """After as many steps and verifications as make learning from each step no longer worth it."""
    lessons = Lessons(StepTimeModel())
    for _ in range(64):
        lessons.note_step(STEP, 0.03)
    for _ in range(num_verifications):
        lessons.note_verification(offer(2), 1, is_probe=False)
    lessons.learn()
    return lessons


def num_steps_until_due(lessons: Lessons) -> int:
    for num_steps in range(1, 10):
        lessons.note_step(STEP, 0.03)
        if lessons.are_due:
            return num_steps
    raise AssertionError


def test_the_first_step_is_learnt_at_once() -> None:
    lessons = Lessons(StepTimeModel())
    lessons.note_step(STEP, 0.03)

    assert not lessons.step_time.is_blank


def test_each_step_teaches_new_lessons() -> None:
    assert num_steps_until_due(Lessons(StepTimeModel())) == 1


def test_later_several_steps_are_learnt_at_once() -> None:
    lessons = experienced()

    for _ in range(3):
        assert num_steps_until_due(lessons) == 4
        lessons.learn()


def test_verifications_are_learnt_at_once_while_few_were_seen() -> None:
    lessons = experienced(num_verifications=10)
    assert num_steps_until_due(lessons) == 4  # where nothing is verified nothing is new
    lessons.learn()
    lessons.note_verification(offer(2), 1, is_probe=False)

    assert lessons.are_due


def test_a_probe_does_not_wait_for_other_steps() -> None:
    lessons = experienced()
    lessons.note_step(STEP, 0.03)
    lessons.note_verification(offer(2), 1, is_probe=False)
    assert not lessons.are_due
    lessons.note_verification(offer(2), 1, is_probe=True)

    assert lessons.are_due
    lessons.learn()
    assert not lessons.are_due


def test_a_probe_surprises_by_its_own_step_alone() -> None:
    def surprises(num_accepted: int, num_others: int) -> bool:
        lessons = experienced()
        bad = offer(2)
        for _ in range(100):
            lessons.note_verification(bad, 0, is_probe=False)
        lessons.learn()
        for _ in range(num_others):  # of the steps before
            lessons.note_verification(offer(5), 2, is_probe=False)
        lessons.note_verification(bad, num_accepted, is_probe=True)
        return lessons.learn()

    assert surprises(2, num_others=0)
    assert surprises(2, num_others=3)
    assert not surprises(0, num_others=3)


def test_what_is_no_probe_does_not_surprise() -> None:
    lessons = experienced()
    lessons.note_verification(offer(5), 5, is_probe=False)

    assert not lessons.learn()
