"""How often to save: as published, near the best there is, within bounds, and without flapping."""

from math import expm1, sqrt

import pytest
from everstep.policies.cadence import CadenceDecision, Formula, Interval, Prior, Saving, YoungDaly, best_interval
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


def snapshot_of(decision: CadenceDecision) -> Interval:
    return decision.snapshot


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
    decision = policy.decide(saving(0.02, 0.5), saving(8.0, 0.5))
    assert decision.snapshot.steps == 24
    assert decision.checkpoint.steps == 480
    assert decision.snapshot.reason == (
        "every 24 steps: Young asks for one in 12 s at 0.02 s each, with a failure in 3.6e+03 s (0 in 0 s) and steps "
        "of 0.5 s"
    )
    later = policy.decide(saving(0.02, 0.5, 3, 0.0), saving(8.0, 0.5))
    assert later.snapshot.steps == 12, "four times the failures, half the interval"
    assert later.checkpoint.steps == 480, "which helps against other failures"


def test_what_costs_nothing_is_done_after_each_step() -> None:
    decision = YoungDaly().decide(saving(0.0), saving(0.0))
    assert (decision.snapshot.steps, decision.checkpoint.steps) == (1, 1)


@given(costs, steps, counts, durations, st.integers(1, 50), st.integers(0, 50))
def test_an_interval_stays_within_its_bounds(
    cost: float, step: float, failures: int, observed: float, low: int, more: int
) -> None:
    bounds = low, low + more
    policy = YoungDaly(snapshot_bounds=bounds, checkpoint_bounds=(7, 7))
    wide = YoungDaly(snapshot_bounds=(1, 10**9), checkpoint_bounds=(1, 10**9))
    held = saving(cost, step, failures, observed)
    decision = policy.decide(held, held)
    assert bounds[0] <= decision.snapshot.steps <= bounds[1]
    assert decision.checkpoint.steps == 7
    free = wide.decide(held, held).snapshot
    assert decision.snapshot.steps == min(max(free.steps, bounds[0]), bounds[1])
    # What was right under other bounds is not kept against these.
    again = policy.decide(
        held, held, CadenceDecision(Interval(low + more + 9, low + more + 9.0, ""), decision.checkpoint)
    )
    assert again.snapshot.steps == decision.snapshot.steps


@given(st.floats(0.01, 1000.0), steps, counts, durations)
def test_dearer_saves_are_rarer_and_more_failures_make_them_more_frequent(
    cost: float, step: float, failures: int, observed: float
) -> None:
    policy = YoungDaly(snapshot_bounds=(1, 10**9), damping=1.0)
    plain = snapshot_of(policy.decide(saving(cost, step, failures, observed), saving()))
    dearer = snapshot_of(policy.decide(saving(2 * cost, step, failures, observed), saving()))
    worse = snapshot_of(policy.decide(saving(cost, step, failures + 5, observed), saving()))
    slower = snapshot_of(policy.decide(saving(cost, 2 * step, failures, observed), saving()))
    tolerance = 1 + 1e-9
    assert worse.exact <= plain.exact * tolerance
    assert plain.exact <= dearer.exact * tolerance
    assert slower.exact <= plain.exact * tolerance


def test_an_interval_is_kept_until_the_estimate_has_really_moved() -> None:
    policy = YoungDaly(prior=Prior(1.0, 1e9), formula=Formula.YOUNG, damping=1.25, snapshot_bounds=(1, 10**9))

    def after(cost: float, current: CadenceDecision | None) -> CadenceDecision:
        return policy.decide(saving(cost), saving(), current)

    first = after(1.0, None)
    # The interval goes with the root of the cost, and 1.25^2 = 1.5625.
    kept = after(1.56, first)
    assert (kept.snapshot.steps, kept.snapshot.exact) == (first.snapshot.steps, first.snapshot.exact)
    assert kept.snapshot.reason.startswith(f"every {first.snapshot.steps} steps as before: ")
    assert after(1 / 1.56, kept).snapshot.steps == first.snapshot.steps
    moved = after(1.57, kept)
    assert moved.snapshot.exact == pytest.approx(sqrt(2 * 1.57 * 1e9))
    assert after(1 / 1.57, kept).snapshot.steps < first.snapshot.steps
    assert moved.checkpoint == after(1.57, moved).checkpoint or moved.checkpoint.steps == first.checkpoint.steps


@given(st.floats(0.001, 1000.0), st.lists(st.floats(1.0, 1.55), min_size=2, max_size=20), steps)
def test_estimates_within_the_damping_never_make_it_flap(cost: float, factors: list[float], step: float) -> None:
    """Also where an interval is so short that rounding alone would move it by half."""
    policy = YoungDaly(prior=Prior(1.0, 100.0), formula=Formula.YOUNG, damping=1.25)
    decision: CadenceDecision | None = None
    seen = []
    for factor in factors:
        decision = policy.decide(saving(cost * factor, step), saving(cost * factor, step), decision)
        seen.append((decision.snapshot.steps, decision.checkpoint.steps))
    assert len(set(seen)) == 1


@given(costs, costs, steps, st.integers(0, 10_000))
def test_every_checkpoint_has_a_snapshot(cheap: float, dear: float, step: float, at: int) -> None:
    decision = YoungDaly().decide(saving(cheap, step), saving(dear, step))
    assert decision.checkpoint_after(at) == (at % decision.checkpoint.steps == 0)
    assert decision.snapshot_after(at) or not decision.checkpoint_after(at)
    assert decision.snapshot_after(at) or at % decision.snapshot.steps != 0


def test_when_saves_are_due() -> None:
    decision = CadenceDecision(Interval(3, 3.0, ""), Interval(5, 5.0, ""))
    assert [step for step in range(1, 16) if decision.snapshot_after(step)] == [3, 5, 6, 9, 10, 12, 15]
    assert [step for step in range(1, 16) if decision.checkpoint_after(step)] == [5, 10, 15]


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
        (lambda: YoungDaly(snapshot_bounds=(0, 5)), "snapshot_bounds=(0, 5) must be at least 1 and ascend"),
        (lambda: YoungDaly(checkpoint_bounds=(6, 5)), "checkpoint_bounds=(6, 5) must be at least 1 and ascend"),
        (lambda: YoungDaly(damping=0.9), "damping=0.9 must be a finite number of at least 1"),
    ],
)
def test_what_cannot_work_is_refused(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="must be") as refused:
        make()
    assert str(refused.value) == text
