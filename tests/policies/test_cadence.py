"""How often to save: as published, near the best there is, within bounds, and without flapping."""

from math import expm1, log2, sqrt

import pytest
from everstep.policies.cadence import Formula, Prior, Saving, YoungDaly, best_interval
from hypothesis import given
from hypothesis import strategies as st

MINUTE = 60.0
HOUR = 3600.0
costs = st.floats(0.0, 1000.0)
counts = st.integers(0, 1000)
durations = st.floats(0.0, 1e7)
steps = st.floats(0.001, 100.0)


def saving(cost: float = 1.0, step: float = 1.0, failures: int = 0, observed: float = 0.0) -> Saving:
    return Saving(cost, step, failures, observed)


@pytest.mark.parametrize(("mean", "minutes"), [(24 * HOUR, 117.0), (6 * HOUR, 57.0), (15 * MINUTE, 9.1)])
def test_the_figures_that_daly_gives(mean: float, minutes: float) -> None:
    """Figures 3 to 5 of the paper: five minutes for a dump."""
    assert best_interval(5 * MINUTE, mean) / MINUTE == pytest.approx(minutes, rel=0.006)


def test_young_by_hand() -> None:
    assert best_interval(2.0, 3600.0, Formula.YOUNG) == 120.0


def test_where_saving_takes_longer_than_two_failures() -> None:
    assert best_interval(200.0, 100.0) == 100.0
    assert best_interval(1000.0, 100.0) == 100.0
    assert best_interval(199.999, 100.0) < 100.0


def overhead(interval: float, cost: float, mean: float) -> float:
    """Expected seconds for one second of training, failures being exponential and a restart free."""
    return mean * expm1((interval + cost) / mean) / interval


def optimum(cost: float, mean: float) -> float:
    """By golden-section search."""
    low, high = 1e-6 * mean, 3.0 * mean
    ratio = (sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if overhead(left, cost, mean) < overhead(right, cost, mean):
            high = right
        else:
            low = left
    return (low + high) / 2


@given(st.floats(0.001, 0.9), st.floats(10.0, 1e6))
def test_daly_is_near_the_best_and_young_is_not_better(share: float, mean: float) -> None:
    cost = share * mean
    best = optimum(cost, mean)
    assert best_interval(cost, mean) == pytest.approx(best, rel=0.02)
    assert abs(best_interval(cost, mean) - best) <= abs(best_interval(cost, mean, Formula.YOUNG) - best) + 1e-4 * mean


def test_no_failure_so_far_does_not_mean_never() -> None:
    prior = Prior(failures=2.0, seconds=1000.0)
    assert prior.mean_seconds_between(0, 0.0) == 500.0
    assert prior.mean_seconds_between(0, 1000.0) == 1000.0
    assert prior.mean_seconds_between(3, 1500.0) == 500.0


@given(st.floats(0.1, 100.0), st.floats(1.0, 1e6), counts, st.floats(1.0, 1e7))
def test_the_rate_lies_between_what_is_expected_and_what_is_seen(
    failures: float, seconds: float, seen: int, observed: float
) -> None:
    rate = 1 / Prior(failures, seconds).mean_seconds_between(seen, observed)
    lowest, highest = sorted((failures / seconds, seen / observed))
    assert lowest * (1 - 1e-9) <= rate <= highest * (1 + 1e-9)


def test_intervals_by_hand() -> None:
    """A failure an hour: Young asks for a snapshot of 20 ms each 12 s, and for a checkpoint of 8 s each 4 minutes."""
    policy = YoungDaly(prior=Prior(1.0, HOUR), formula=Formula.YOUNG)
    snapshot = policy.decide(saving(0.02, 0.5))
    assert snapshot.steps == 32, "the power of two that is nearest to 24, as ratios go"
    assert snapshot.reason == (
        "every 32 steps: Young asks for one in 12 s at 0.02 s each, with a failure in 3.6e+03 s (0 in 0 s) and steps "
        "of 0.5 s"
    )
    assert policy.decide(saving(8.0, 0.5)).steps == 512
    assert policy.decide(saving(0.02, 0.5, 3)).steps == 16, "four times the failures, half the interval"


def test_what_costs_nothing_is_done_after_each_step() -> None:
    assert YoungDaly().decide(saving(0.0)).steps == 1


@given(costs, steps, counts, durations, st.integers(1, 5000))
def test_an_interval_is_the_nearest_power_of_two_within_its_bound(
    cost: float, step: float, failures: int, observed: float, most: int
) -> None:
    held = saving(cost, step, failures, observed)
    decided = YoungDaly(most=most).decide(held).steps
    assert decided.bit_count() == 1
    assert 1 <= decided <= most
    exact = best_interval(cost, Prior().mean_seconds_between(failures, observed)) / step
    if 1 <= exact <= most / 2:
        assert abs(log2(decided / exact)) <= 0.5 + 1e-9
    if exact >= most:
        assert decided == 1 << (most.bit_length() - 1)


@given(st.floats(0.01, 1000.0), st.floats(1.0, 1e7))
def test_a_power_of_two_costs_little_more(cost: float, mean: float) -> None:
    """First order: what is saved for and what is lost, in seconds for one second of training."""
    best = sqrt(2 * cost * mean)
    at = YoungDaly(most=1 << 62, prior=Prior(1.0, mean), formula=Formula.YOUNG).decide(saving(cost, 1.0)).steps
    if best >= 1:
        assert cost / at + at / (2 * mean) <= 1.0607 * (cost / best + best / (2 * mean))


@given(st.floats(0.01, 1000.0), steps, counts, durations)
def test_dearer_saves_are_rarer_and_more_failures_make_them_more_frequent(
    cost: float, step: float, failures: int, observed: float
) -> None:
    policy = YoungDaly(most=1 << 62)
    plain = policy.decide(saving(cost, step, failures, observed)).steps
    assert policy.decide(saving(cost, step, failures + 5, observed)).steps <= plain
    assert policy.decide(saving(2 * cost, step, failures, observed)).steps >= plain
    assert policy.decide(saving(cost, 2 * step, failures, observed)).steps <= plain


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Prior(0.0, 1.0), "prior.failures=0.0 must be a finite, positive number"),
        (lambda: Prior(1.0, 0.0), "prior.seconds=0.0 must be a finite, positive number"),
        (lambda: Prior(1.0, float("inf")), "prior.seconds=inf must be a finite, positive number"),
        (lambda: saving(cost=-1.0), "cost=-1.0 must be a finite number of at least 0"),
        (lambda: saving(failures=-1), "failures=-1 must be a finite number of at least 0"),
        (lambda: saving(observed=-1.0), "observed=-1.0 must be a finite number of at least 0"),
        (lambda: saving(step=0.0), "step=0.0 must be a finite, positive number"),
        (lambda: YoungDaly(most=0), "most=0 must be a finite number of at least 1"),
    ],
)
def test_what_cannot_work_is_refused(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="must be") as refused:
        make()
    assert str(refused.value) == text
