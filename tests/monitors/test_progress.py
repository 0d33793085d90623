"""How long a rank may stand still depends on what it is at, and on what steps of this run take."""

from math import inf

import pytest
from everstep.monitors.progress import LEAST, Activity, Limits, Pending, ProgressRecord, adapted
from hypothesis import given
from hypothesis import strategies as st

LIMITS = Limits(hang=30.0, data=120.0, outside=300.0, stages={"evaluation": 600.0})


@pytest.mark.parametrize(
    ("record", "seconds"),
    [
        (ProgressRecord(3, activity=Activity.COMPUTING), 30.0),
        (ProgressRecord(3, activity=Activity.REDUCING), 30.0),
        (ProgressRecord(3, activity=Activity.SAVING), 30.0),
        (ProgressRecord(3, activity=Activity.LOADING), 120.0),
        (ProgressRecord(3, activity=Activity.OUTSIDE), 300.0),
        (ProgressRecord(3, activity=Activity.COMPUTING, stage="evaluation"), 600.0),
        (ProgressRecord(3, activity=Activity.LOADING, stage="compilation"), inf),
    ],
)
def test_what_a_rank_is_at_says_how_long_it_may_take(record: ProgressRecord, seconds: float) -> None:
    assert LIMITS.of(record) == seconds
    assert not LIMITS.exceeded(record)


def test_a_limit_is_exceeded_after_it() -> None:
    assert not LIMITS.exceeded(ProgressRecord(3, activity=Activity.COMPUTING, unchanged=30.0))
    assert LIMITS.exceeded(ProgressRecord(3, activity=Activity.COMPUTING, unchanged=30.1))
    assert not LIMITS.exceeded(ProgressRecord(3, activity=Activity.LOADING, unchanged=30.1))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hang": 0.0}, r"limits.hang=0.0 must be"),
        ({"hang": float("nan")}, r"limits.hang=nan must be"),
        ({"hang": 30.0, "data": 5.0}, r"limits.data=5 is shorter than limits.hang=30"),
        ({"hang": 30.0, "data": 60.0, "outside": 20.0}, r"limits.outside=20 is shorter than"),
        ({"hang": 30.0, "data": inf, "outside": inf, "stages": {"export": 7.0}}, r"limits.stages\['export'\]=7 is"),
    ],
)
def test_limits_that_contradict_each_other(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        Limits(**wrong)
    assert "\n" not in str(raised.value)


def test_nobody_is_stuck_before_a_step_was_measured() -> None:
    assert adapted(None) == Limits()
    for activity in Activity:
        assert not adapted(None).exceeded(ProgressRecord(0, activity=activity, unchanged=1e9))


@given(st.floats(0, 1e6))
def test_limits_follow_the_steps(seconds: float) -> None:
    found = adapted(seconds)
    assert found.hang >= max(LEAST.hang, 10 * seconds)
    assert found.hang <= found.data <= found.outside
    assert (found == LEAST) == (10 * seconds <= LEAST.hang)


def test_limits_of_stages_adapt_as_well() -> None:
    assert adapted(0.1, LIMITS).stages == {"evaluation": 600.0}
    assert adapted(100.0, LIMITS) == Limits(1000.0, 1000.0, 1000.0, {"evaluation": 1000.0})
    with pytest.raises(ValueError, match="step_seconds"):
        adapted(-1.0)


def test_ranks_are_ordered_by_who_is_awaited() -> None:
    def reduction(sequence: int, attempt: int = 0) -> ProgressRecord:
        pending = Pending("1.1", sequence, "all-reduce", 4, "float32")
        return ProgressRecord(3, attempt=attempt, activity=Activity.REDUCING, pending=pending)

    later = [
        ProgressRecord(2, activity=Activity.REDUCING),
        ProgressRecord(3, activity=Activity.OUTSIDE),
        ProgressRecord(3, activity=Activity.REDUCING),
        reduction(1),
        reduction(2),
        ProgressRecord(3, attempt=1, activity=Activity.LOADING),
        reduction(1, attempt=1),
        ProgressRecord(3, unit=1, activity=Activity.COMPUTING),
    ]
    assert [record.reached for record in later] == sorted(record.reached for record in later)
    assert len({record.reached for record in later}) == len(later)
    # How many microbatches a rank owes is nobody else's business, and a bucket may leave before the reduction.
    computing = ProgressRecord(3, activity=Activity.COMPUTING, microbatch=5, pending=reduction(2).pending)
    assert computing.reached == later[1].reached
