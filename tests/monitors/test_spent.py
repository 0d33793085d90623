"""What a rank has spent, in sums, and what is usual."""

from statistics import median

import pytest
from everstep.monitors.spent import NEWEST, Spent, Tally
from hypothesis import given
from hypothesis import strategies as st

SECONDS = st.floats(0, 100)
Work = list[tuple[float, float]]
WORK = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20)


@given(WORK, WORK)
def test_what_lies_between_is_a_mean_of_just_that(before: Work, after: Work) -> None:
    tally = Tally()
    tally.step(before, 7.0)
    began = tally.spent
    for each in after:
        tally.step([each], 0.5)
    mean = sum(compute + data for compute, data in after) / len(after)
    assert tally.spent.seconds_since(began) == pytest.approx(mean, abs=1e-9)
    assert tally.spent.since(began).communication == pytest.approx(0.5)
    assert tally.spent.microbatches == len(before) + len(after)


@given(WORK, st.integers(1, NEWEST // 2 - 1), st.floats(1, 1e6))
def test_pauses_of_some_microbatches_are_not_usual(before: Work, pauses: int, seconds: float) -> None:
    tally = Tally()
    tally.step(before, 0.0)
    usual = [(0.1 + place / 1000, 0.01) for place in range(NEWEST)]
    tally.step(usual, 0.0)
    tally.step([(seconds, seconds)] * pauses, 0.0)
    times = tally.spent.since(Spent())
    assert 0.1 <= times.compute <= 0.1 + NEWEST / 1000
    assert times.data == 0.01


@given(WORK)
def test_the_median_of_the_newest(work: Work) -> None:
    tally = Tally()
    for each in work:
        tally.step([each], 0.0)
    newest = sorted(compute for compute, _ in work[-NEWEST:])
    assert tally.spent.usual_compute == newest[len(newest) // 2]
    assert len(newest) % 2 == 0 or tally.spent.usual_compute == median(newest)


def test_no_step_has_ended_yet() -> None:
    assert Spent().since(Spent()).communication == 0.0


def test_nothing_was_computed() -> None:
    with pytest.raises(ValueError, match="3 microbatches now and 3 before: nothing to time"):
        Spent(3).seconds_since(Spent(3))
