from itertools import pairwise

from specray.control.draft_trial import DraftTrial


class Pool:
    """Has a draft whenever one is wanted, and asks every ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_drafts = 0
        self._trial = DraftTrial(lambda: self.now)

    def run(self, seconds: float, *, pays: bool = False, has_requests: bool = True) -> list[float]:
        """When there is a draft."""
        times = []
        until = self.now + seconds
        while self.now < until:
            self._trial.update(self.num_drafts, pays=pays, may_help=has_requests)
            self.num_drafts = int(self._trial.is_on or pays)
            times += [self.now] * self.num_drafts
            self.now += 10.0
        return times


def test_after_ten_minutes_without_a_draft_there_is_one_for_two() -> None:
    times = Pool().run(1200.0)

    assert (times[0], times[-1]) == (600.0, 720.0)
    assert len(times) == 13


def test_pauses_double_up_to_an_hour() -> None:
    times = Pool().run(24 * 3600.0)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    pauses = [pause for pause in pauses if pause > 10.0]

    assert [round(pause, -2) for pause in pauses[:4]] == [1200.0, 2400.0, 3600.0, 3600.0]
    assert max(pauses) < 3700.0


def test_what_pays_begins_anew() -> None:
    pool = Pool()
    pool.run(3600.0)
    pool.run(60.0, pays=True)
    gone = pool.now

    assert pool.run(1200.0)[0] - gone < 630.0


def test_there_is_none_without_requests_but_one_at_once_when_they_come_after_a_night() -> None:
    pool = Pool()

    assert pool.run(8 * 3600.0, has_requests=False) == []
    assert pool.run(300.0)[0] == 8 * 3600.0


def test_while_there_are_drafts_anyway_none_is_on_trial() -> None:
    now = [0.0]
    trial = DraftTrial(lambda: now[0])
    for now[0] in range(0, 7200, 10):
        trial.update(1, pays=False, may_help=True)
        assert not trial.is_on


def test_a_trial_lasts_from_when_the_draft_is_there() -> None:
    now = [0.0]
    trial = DraftTrial(lambda: now[0])
    for now[0] in range(0, 1500, 10):  # its weights are loaded for a quarter of an hour
        trial.update(0, pays=False, may_help=True)
    assert trial.is_on
    for now[0] in range(1500, 1620, 10):
        trial.update(1, pays=False, may_help=True)
        assert trial.is_on
    now[0] = 1620.0
    trial.update(1, pays=False, may_help=True)
    assert not trial.is_on


def test_a_trial_ends_with_the_requests_and_counts_for_nothing() -> None:
    pool = Pool()
    pool.run(630.0)
    assert pool.run(600.0, has_requests=False) == []

    times = pool.run(700.0)

    assert times[0] - 1230.0 < 30.0  # at once, as none was there for ten minutes
    assert len(times) == 13
