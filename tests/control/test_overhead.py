import pytest

from specray.control.overhead import Overhead


def seen(plain_s: float | None, speculative_s: float | None, num_steps: int = 200) -> Overhead:
    overhead = Overhead()
    for _ in range(num_steps):
        if plain_s is not None:
            overhead.observe(plain_s, 1, is_speculative=False)
        if speculative_s is not None:
            overhead.observe(speculative_s, 1, is_speculative=True)
    return overhead


def test_it_is_what_draft_tokens_add() -> None:
    assert seen(0.001, 0.003).extra_s == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("plain_s", "speculative_s"), [(None, 0.003), (0.003, None), (None, None), (0.003, 0.001)]
)
def test_it_is_nothing_where_nothing_is_known_of_it(
    plain_s: float | None, speculative_s: float | None
) -> None:
    assert seen(plain_s, speculative_s).extra_s == 0.0


def test_a_pause_for_another_reason_hardly_counts() -> None:
    overhead = seen(0.001, 0.003)
    overhead.observe(2.0, 1, is_speculative=True)
    assert overhead.extra_s < 0.0025


def test_an_accident_at_the_beginning_is_soon_forgotten() -> None:
    overhead = seen(0.001, None)
    overhead.observe(0.200, 1, is_speculative=True)
    for _ in range(16):
        overhead.observe(0.003, 1, is_speculative=True)
    assert overhead.extra_s < 0.005


def test_it_follows_a_change() -> None:
    overhead = seen(0.001, 0.003)
    for _ in range(200):
        overhead.observe(0.006, 1, is_speculative=True)
    assert overhead.extra_s == pytest.approx(0.005, rel=1e-3)


def test_what_was_seen_at_another_load_is_forgotten() -> None:
    overhead = seen(0.001, 0.003)
    overhead.observe(0.004, 8, is_speculative=False)
    assert overhead.extra_s == 0.0
    overhead.observe(0.005, 8, is_speculative=True)
    overhead.observe(0.005, 7, is_speculative=True)
    assert overhead.extra_s == pytest.approx(0.001)


def test_each_probe_makes_it_less() -> None:
    overhead = seen(0.001, 0.003)
    overhead.relieve()
    assert overhead.extra_s == pytest.approx(0.0018)
    nothing = Overhead()
    nothing.relieve()
    assert nothing.extra_s == 0.0
