from specray.control.probing import ProbeClock


def pause_steps(clock: ProbeClock) -> int:
    """Steps with somebody left out until the next probe."""
    steps = 1
    while not clock.tick(0.05, lambda: 0.0):
        steps += 1
    return steps


def settle(clock: ProbeClock, num_steps: int) -> None:
    for _ in range(num_steps):
        clock.settle(0.05)


def test_pauses_double_up_to_a_bound() -> None:
    clock = ProbeClock()

    pauses = [pause_steps(clock) for _ in range(7)]

    assert pauses[:3] == [8, 16, 32]
    assert pauses[-1] == pauses[-2] == 128


def test_what_is_soon_given_up_again_is_not_tried_sooner() -> None:
    clock = ProbeClock()
    for _ in range(5):
        pause_steps(clock)
        settle(clock, 10)

    assert pause_steps(clock) == 128


def test_what_lasted_is_missed_soon() -> None:
    clock = ProbeClock()
    for _ in range(7):
        pause_steps(clock)
    settle(clock, 100)

    assert pause_steps(clock) == 8


def test_what_lasts_for_a_step_only_puts_no_probe_off() -> None:
    clock = ProbeClock()
    for _ in range(7):
        pause_steps(clock)
    for _ in range(100):
        clock.tick(0.05, lambda: 0.0)
    settle(clock, 1)

    assert pause_steps(clock) == 28


def test_a_surprise_shortens_the_pause_at_once() -> None:
    clock = ProbeClock()
    for _ in range(7):
        pause_steps(clock)
    clock.reset()

    assert pause_steps(clock) == 8


def test_haste_that_is_not_paid_for_yet_has_to_wait() -> None:
    """Load that comes and goes every hundred steps would keep the pauses short for good."""
    clock = ProbeClock()
    num_steps, num_probes = 20_000, 0
    for step in range(num_steps):
        if step % 100 == 0 and clock.may_hasten:
            clock.hasten()
        num_probes += clock.tick(0.05, lambda: 0.03)

    assert 0.03 * num_probes < 0.008 * num_steps * 0.05


def test_haste_after_a_long_while_shortens_the_pause_at_once() -> None:
    clock = ProbeClock()
    for _ in range(3000):
        clock.tick(0.05, lambda: 0.03)
    clock.hasten()
    steps = 1
    while not clock.tick(0.05, lambda: 0.03):
        steps += 1

    assert steps <= 16


def test_haste_is_paid_for_by_steps_with_probes_and_with_nobody_left_out() -> None:
    for pay in (lambda clock: clock.tick(0.05, lambda: 0.03), lambda clock: clock.settle(0.05)):
        clock = ProbeClock()
        clock.hasten()
        for _ in range(300):
            clock.tick(0.05, lambda: 0.03)
        assert not clock.may_hasten

        for _ in range(2000):
            pay(clock)
        assert clock.may_hasten


def test_what_a_surprise_makes_short_is_no_haste() -> None:
    clock = ProbeClock()
    clock.hasten()
    clock.reset()
    for _ in range(300):
        clock.tick(0.05, lambda: 0.03)

    assert clock.may_hasten


def test_load_that_changes_all_the_time_puts_no_probe_off() -> None:
    clock = ProbeClock()
    num_probes = 0
    for step in range(100):
        if step % 5 == 0 and clock.may_hasten:
            clock.hasten()
        num_probes += clock.tick(0.05, lambda: 0.0)

    assert num_probes >= 3
