"""How often is saved: every rank has an opinion once it knows what one costs, and all follow the shortest."""

import pytest
from everstep.actors.rank import cadence
from everstep.actors.rank.cadence import FIRST, Cadence
from everstep.policies.cadence import Formula, Prior, YoungDaly

HOURLY = YoungDaly(prior=Prior(1.0, 3600.0), formula=Formula.YOUNG)


class Clock:
    """Time that goes by when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cadence, "time", clock)
    return clock


def train(rank: Cadence, clock: Clock, steps: int, seconds: float, wished: int = 0) -> list[str]:
    """So many steps; what was said when the interval changed."""
    said = []
    for _ in range(steps):
        clock.now += seconds
        said.append(rank.agree(wished))
    return [reason for reason in said if reason]


def test_what_is_configured_holds_and_nobody_is_asked(clock: Clock) -> None:
    rank = Cadence(10)
    assert train(rank, clock, 20, 1.0, wished=4) == []
    assert rank.every == 10
    assert rank.wish(20, 2, 5.0) == 0


def test_nobody_has_an_opinion_before_one_was_saved_and_a_step_was_timed(clock: Clock) -> None:
    rank = Cadence(None, HOURLY)
    assert (rank.every, rank.wish(0, 1, 1.0)) == (FIRST, 0)
    train(rank, clock, 3, 0.5)
    assert rank.wish(3, 0, 0.0) == 0
    assert rank.wish(3, 1, 0.02) != 0


def test_an_opinion_weighs_costs_against_setbacks(clock: Clock) -> None:
    rank = Cadence(None, HOURLY)
    train(rank, clock, 15, 0.5)
    # sqrt(2 * 0.02 s * 3600 s) = 12 s are 24 steps; of the powers of two 32 is nearer.
    assert rank.wish(0, 2, 0.04) == 32
    rank.setbacks = 3
    assert rank.wish(0, 2, 0.04) == 16
    # Twice an hour of training without more of them: half as often as after one.
    assert rank.wish(7200, 2, 0.04) == 16
    rank.setbacks = 0
    assert rank.wish(7200, 2, 0.04) == 32 == rank.wish(7200, 4, 0.08)


def test_a_pause_is_no_step(clock: Clock) -> None:
    rank = Cadence(None, HOURLY)
    train(rank, clock, 10, 0.5)
    before = rank.wish(0, 1, 0.02)
    train(rank, clock, 1, 500.0)
    assert rank.wish(0, 1, 0.02) == before


def test_all_follow_the_shortest_and_say_why(clock: Clock) -> None:
    rank = Cadence(None, HOURLY)
    train(rank, clock, 4, 0.5)
    assert rank.wish(4, 1, 0.02) == 32
    (reason,) = train(rank, clock, 3, 0.5, wished=32)
    assert (rank.every, reason[:26]) == (32, "every 32 steps: Young asks")
    (reason,) = train(rank, clock, 3, 0.5, wished=8)
    assert (rank.every, reason) == (8, "every 8 steps: a rank where one costs less asks for it")


def test_those_who_have_just_joined_do_not_know_what_was_agreed_before(clock: Clock) -> None:
    old, new = Cadence(None, HOURLY), Cadence(None, HOURLY)
    train(old, clock, 2, 0.5, wished=64)
    assert old.every == 64
    for rank in (old, new):
        train(rank, clock, 1, 0.5, wished=0)
    assert old.every == new.every == FIRST
