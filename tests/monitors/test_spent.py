"""What a rank has spent, in sums."""

import pytest
from everstep.monitors.spent import Spent
from hypothesis import given
from hypothesis import strategies as st

SECONDS = st.floats(0, 100)
Work = list[tuple[float, float]]
WORK = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20)


def spend(spent: Spent, work: Work, steps: int = 0) -> Spent:
    for compute, data in work:
        spent = spent.computed(compute, data)
    for _ in range(steps):
        spent = spent.reduced(0.5)
    return spent


@given(WORK, WORK)
def test_what_lies_between_is_a_mean_of_just_that(before: Work, after: Work) -> None:
    began = spend(Spent(), before, 3)
    times = spend(began, after, 2).since(began)
    assert times.compute == pytest.approx(sum(compute for compute, _ in after) / len(after), abs=1e-9)
    assert times.data == pytest.approx(sum(data for _, data in after) / len(after), abs=1e-9)
    assert times.communication == pytest.approx(0.5)


def test_no_step_has_ended_yet() -> None:
    assert Spent().computed(1.0, 2.0).since(Spent()).communication == 0.0


def test_nothing_was_computed() -> None:
    with pytest.raises(ValueError, match="3 microbatches now and 3 before: nothing to time"):
        Spent(3).since(Spent(3))
