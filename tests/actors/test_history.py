"""Records stay until the controller has them, and are given away only when it asks."""

from everstep.actors.messages import StepRecord
from everstep.actors.rank.history import History
from everstep.policies.world import Generation


def record_of(step: int) -> StepRecord:
    return StepRecord(step, 1.0, 1.0, 0.1, {}, {}, None, 8, 4, 0.0)


def history_of(*steps: int) -> History:
    history = History()
    for step in steps:
        history.add(record_of(step))
    return history


def steps_of(records: tuple[StepRecord, ...]) -> list[int]:
    return [record.step for record in records]


def test_nothing_is_said_unless_asked_and_once_for_each_time() -> None:
    history = history_of(0, 1)
    assert history.answer() == ()
    history.acknowledge(0, wanted=True)
    assert steps_of(history.answer()) == [0, 1]
    assert history.answer() == ()
    history.add(record_of(2))
    history.acknowledge(0, wanted=True)
    assert steps_of(history.answer()) == [0, 1, 2]
    history.acknowledge(0, wanted=True)
    history.acknowledge(0, wanted=False)
    assert history.answer() == ()


def test_what_the_controller_has_is_dropped() -> None:
    history = history_of(0, 1, 2, 3)
    history.acknowledge(3, wanted=False)
    assert steps_of(history.rest()) == [3]
    history.acknowledge(2, wanted=False)
    assert steps_of(history.rest()) == [3]
    history.acknowledge(9, wanted=False)
    history.add(record_of(4))
    assert history.rest() == ()
    history.add(record_of(9))
    assert steps_of(history.rest()) == [9]


def test_it_says_what_it_keeps_or_will_keep() -> None:
    history = History()
    assert history.held == 0
    history.add(record_of(5))
    history.add(record_of(6))
    assert history.held == 5
    history.acknowledge(6, wanted=False)
    assert history.held == 6
    history.acknowledge(7, wanted=False)
    assert history.held == 7
    history.acknowledge(9, wanted=False)
    assert history.held == 7, "it has still to apply this step"


def test_steps_that_are_taken_once_more_are_told_as_they_come_then() -> None:
    """Also what the controller has already, and nothing of the course that was left, however late it comes."""
    history = History()
    history.begin(0, Generation(1, 1))
    for step in range(4):
        history.add(record_of(step), Generation(1, 1))
    history.acknowledge(4, wanted=False)
    history.begin(2, Generation(1, 2))
    history.add(record_of(4), Generation(1, 1))
    assert history.held == 2
    history.begin(2, Generation(1, 2))
    history.add(record_of(2), Generation(1, 2))
    history.begin(2, Generation(1, 2))
    history.acknowledge(2, wanted=True)
    assert steps_of(history.answer()) == [2]


def test_what_is_not_written_down_is_kept_for_a_later_controller_but_said_once() -> None:
    history = history_of(0, 1, 2, 3)
    history.acknowledge(3, wanted=True, kept=1)
    assert steps_of(history.answer()) == [3]
    assert history.held == 1
    # Another one takes over, and has nothing.
    history.acknowledge(0, wanted=True)
    assert steps_of(history.answer()) == [1, 2, 3]
    history.acknowledge(4, wanted=False)
    assert history.held == 4
