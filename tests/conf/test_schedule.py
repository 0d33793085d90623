"""B as a function of the step, against a walk over the steps."""

import pickle
from typing import Any

import pytest
from everstep.conf.schedule import BatchSchedule
from hypothesis import given
from hypothesis import strategies as st

tables = st.dictionaries(st.integers(1, 60), st.integers(1, 9), max_size=6).flatmap(
    lambda later: st.integers(1, 9).map(lambda first: {0: first, **later})
)


@given(tables)
def test_against_a_walk_over_the_steps(table: dict[int, int]) -> None:
    schedule = BatchSchedule.of(table)
    before, now = 0, table[0]
    for step in range(80):
        now = table.get(step, now)
        assert schedule.at(step) == now
        assert schedule.before(step) == before
        before += now
    assert schedule.largest == max(table.values())
    assert schedule.smallest == min(table.values())


@given(st.integers(1, 1000), st.integers(0, 10**9))
def test_a_number_is_a_schedule_that_never_changes(count: int, step: int) -> None:
    schedule = BatchSchedule.of(count)
    assert (schedule.at(step), schedule.before(step)) == (count, count * step)
    assert schedule.largest == schedule.smallest == count


def test_a_late_step_needs_no_walk() -> None:
    schedule = BatchSchedule.of({0: 2, 10: 3, 10**15: 5})
    assert schedule.before(10**18) == 20 + (10**15 - 10) * 3 + (10**18 - 10**15) * 5


def test_schedules_that_mean_the_same_are_the_same_value() -> None:
    schedule = BatchSchedule.of({5: 4, 0: 8, 3: 8})
    assert schedule == BatchSchedule.of({0: 8, 5: 4})
    assert BatchSchedule.of({0: 8, 7: 8}) == BatchSchedule.of(8)
    assert len({schedule, BatchSchedule.of({0: 8, 5: 4}), BatchSchedule.of(schedule), BatchSchedule.of(8)}) == 2
    schedule.before(9)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_it_says_what_it_is() -> None:
    assert str(BatchSchedule.of(64)) == "64"
    assert str(BatchSchedule.of({0: 8, 100: 16, 2000: 32})) == "8, 16 from step 100 on, 32 from step 2000 on"


@pytest.mark.parametrize(
    ("microbatches", "text"),
    [
        (0, r"0 must be a whole number of at least 1, or a schedule \{step: B\}"),
        (-3, "-3 must be"),
        (2.0, r"2\.0 must be"),
        (True, "True must be"),
        ("8", "'8' must be"),
        (None, "None must be"),
        ({0: 8, 5: 0}, "0 from step 5 on must be a whole number of at least 1"),
        ({0: True}, "True from step 0 on"),
        ({0: 8, 5: 1.5}, r"1\.5 from step 5 on"),
        ({0: 8, -1: 4}, "step -1 of the schedule must be a whole number of at least 0"),
        ({0: 8, True: 4}, "step True of the schedule"),
        ({False: 8}, "step False of the schedule"),
        ({"0": 8}, "step '0' of the schedule"),
        ({0: 8, 2.0: 4}, r"step 2\.0 of the schedule"),
        ({}, r"the schedule \{\} must say how many there are from step 0 on"),
        ({1: 8}, r"the schedule \{1: 8\} must say how many there are from step 0 on"),
    ],
)
def test_what_is_no_schedule_is_refused_in_one_line(microbatches: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as refusal:
        BatchSchedule.of(microbatches)
    assert "\n" not in str(refusal.value)
